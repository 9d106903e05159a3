"""What the supervisor resumes from: read again when it may have changed, and never from nothing by accident."""

from __future__ import annotations

import asyncio
import os
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


def newest(records: Records, *, saved: bool = True, suspect: bool = False) -> tuple[str, int]:
    return asyncio.run(records.newest(saved=saved, suspect=suspect))


def publish_both(run: RunDirectory, records: Records) -> None:
    """Steps 10 and 20, by this supervisor."""
    make = draft_maker(run.checkpoints)
    for step in (10, 20):
        saved = m.Saved(generation=1, step=step, directory=make(step), save_s=0.1)
        assert asyncio.run(records.publish(saved)).problem == ""


def add_step(records: Records) -> None:
    done = m.StepDone(step=1, world=1, samples=1, samples_sha256="", loss=None, lr=None, time=0.0)
    asyncio.run(records.add_steps(1, [done]))


def spoil(run: RunDirectory, step: int, *, unseen: bool = False) -> None:
    """Other bytes, same size: only a look at the contents finds it. `unseen`: the file's times do not tell either."""
    data = next(p for p in (run.checkpoints / f"step-{step:08d}").iterdir() if p.name not in ("manifest.json",))
    before = data.stat()
    data.write_bytes(b"?" * before.st_size)
    changed = before.st_mtime_ns if unseen else before.st_mtime_ns + 1_000_000_000
    os.utime(data, ns=(before.st_atime_ns, changed))


def test_nothing_was_ever_saved(records: Records) -> None:
    add_step(records)
    assert newest(records, saved=False) == ("", 0)


def test_damage_of_an_earlier_supervisors_checkpoint_is_found_and_the_one_before_used(
    run: RunDirectory, records: Records, warnings: list[str]
) -> None:
    make = draft_maker(run.checkpoints)
    for step in (10, 20):
        publish.publish(run.checkpoints, make(step), step)
    spoil(run, 20)

    assert newest(records)[1] == 10
    assert "step 20 cannot be used" in warnings[0]


def test_files_that_did_not_change_are_read_again_only_under_suspicion(
    run: RunDirectory, records: Records, warnings: list[str]
) -> None:
    publish_both(run, records)
    spoil(run, 20, unseen=True)

    assert newest(records)[1] == 20  # not read: a healthy restart is not held up
    assert newest(records, suspect=True)[1] == 10
    assert "step 20 cannot be used" in warnings[0]


def test_a_change_after_this_supervisor_published_is_found(
    run: RunDirectory, records: Records, warnings: list[str]
) -> None:
    publish_both(run, records)
    assert newest(records)[1] == 20
    spoil(run, 20)

    assert newest(records)[1] == 10
    assert "step 20 cannot be used" in warnings[0]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(
    run: RunDirectory, records: Records
) -> None:
    publish.publish(run.checkpoints, draft_maker(run.checkpoints)(10), 10)
    spoil(run, 10)

    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        newest(records)


def test_checkpoints_that_vanished_do_not_make_a_run_start_from_nothing(run: RunDirectory, records: Records) -> None:
    publish_both(run, records)
    add_step(records)
    run.checkpoints.rename(run.path / "unmounted")

    with pytest.raises(CheckpointError, match="the ledger has 1 steps, but there is no checkpoint in"):
        newest(records)


def test_a_run_without_ledger_may_start_from_nothing(records: Records) -> None:
    assert newest(records) == ("", 0)
