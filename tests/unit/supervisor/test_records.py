"""What the supervisor resumes from: verified once, and never from nothing by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.checkpoint import publish
from slurm_elastic.errors import CheckpointError
from slurm_elastic.observe.ledger import Ledger
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.lease import Claimant, Lease
from slurm_elastic.supervisor.records import Records
from slurm_elastic.wire import messages as m
from tests.unit.checkpoint.drafts import draft_maker


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create()
    return run


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def records(run: RunDirectory, warnings: list[str]) -> Iterator[Records]:
    lease = Lease(run, Claimant("n1", 1, 1, 0), 1)
    made = Records(Ledger(run.ledger), run.checkpoints, 3, lease, warnings.append)
    yield made
    asyncio.run(made.close())


def spoil(run: RunDirectory, step: int) -> None:
    """Other bytes, same size: only a look at the contents finds it."""
    data = next(p for p in (run.checkpoints / f"step-{step:08d}").iterdir() if p.name not in ("manifest.json",))
    data.write_bytes(b"?" * data.stat().st_size)


def test_nothing_was_ever_saved(records: Records) -> None:
    assert asyncio.run(records.newest()) == ("", 0)


def test_damage_of_an_earlier_supervisors_checkpoint_is_found_and_the_one_before_used(
    run: RunDirectory, records: Records, warnings: list[str]
) -> None:
    make = draft_maker(run.checkpoints)
    for step in (10, 20):
        publish.publish(run.checkpoints, make(step), step)
    spoil(run, 20)

    assert asyncio.run(records.newest())[1] == 10
    assert "step 20 cannot be used" in warnings[0]


def test_what_this_supervisor_published_itself_is_not_hashed_again(run: RunDirectory, records: Records) -> None:
    draft = draft_maker(run.checkpoints)(10)
    done = asyncio.run(records.publish(m.Saved(generation=1, step=10, directory=draft, save_s=0.1)))
    assert done.problem == ""
    spoil(run, 10)

    assert asyncio.run(records.newest())[1] == 10


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(
    run: RunDirectory, records: Records
) -> None:
    publish.publish(run.checkpoints, draft_maker(run.checkpoints)(10), 10)
    spoil(run, 10)

    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        asyncio.run(records.newest())
