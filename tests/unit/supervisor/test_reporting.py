"""Which facts become events, and which are no news."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.config_model import Base, Elastic, Run, RunConfig
from slurm_elastic.machine.actions import Member
from slurm_elastic.machine.events import CompanionRefused, Event, NodeEnded, StepHeld
from slurm_elastic.machine.policy import policy_of
from slurm_elastic.machine.state import Allocation, Generation, State
from slurm_elastic.machine.step import step
from slurm_elastic.observe.status import SupervisorStatus
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.reporting import Reporter

NOW = 1000.0


@pytest.fixture
def state() -> State:
    """n1 trains; the companion's n2 warms up."""
    config = RunConfig(run=Run(name="gpt", dir="/r", command=("t",)), base=Base(nodes=1), elastic=Elastic(max_nodes=2))
    base, companion = Member(node="n1", job_id=1), Member(node="n2", job_id=2)
    held = (StepHeld(generation=2, node="n2"),)
    return State(
        policy=policy_of(config),
        phase="training",
        base_job_id=1,
        last_number=2,
        live=Generation(number=1, members=(base,), launched_at=NOW - 90, opened_at=NOW - 80, elastic=True),
        next=Generation(number=2, members=(companion,), launched_at=NOW - 5, standby=True),
        allocations=(
            Allocation(job_id=1, role="base", contact="joined", nodes=("n1",)),
            Allocation(job_id=2, role="companion", contact="joined", nodes=("n2",), joined_at=NOW - 9, steps=held),
        ),
    )


def told(tmp_path: Path, state: State, *facts: Event) -> list[str]:
    kinds: list[str] = []

    def note(kind: str, generation: int, reason: str = "", **figures: Any) -> None:
        kinds.append(kind)

    place = SupervisorStatus(epoch=1, host="n1", pid=1, time=NOW, started_at=NOW)
    reporter = Reporter(RunDirectory(tmp_path), "gpt", Course(state, 1, 1), place, note, lambda: None, dict)  # type: ignore[arg-type]
    for fact in facts:
        before = state
        state, _ = step(before, fact, NOW)
        reporter.happened(fact, before, state)
    return kinds


@pytest.mark.parametrize(
    ("leaving", "end", "news"),
    [
        (True, {"signal": 9}, 0),
        (True, {"exit_code": 137}, 0),
        (True, {"exit_code": 1}, 1),
        (False, {"signal": 9}, 1),
    ],
)
def test_workers_that_slurm_kills_with_their_job_have_not_failed(
    leaving: bool, end: dict[str, int], news: int, state: State, tmp_path: Path
) -> None:
    base, companion = state.allocations
    if leaving:
        companion = replace(companion, notice="SIGUSR1", noticed_at=NOW - 1)
    ended = NodeEnded(generation=2, node="n2", **end)  # type: ignore[arg-type]

    kinds = told(tmp_path, replace(state, allocations=(base, companion)), ended)
    assert kinds.count("worker_failed") == news


def test_companions_that_slurm_will_never_accept_are_told_once(state: State, tmp_path: Path) -> None:
    refused = [CompanionRefused(token=f"companion-0000{n}", reason="Invalid qos", permanent=True) for n in (1, 2)]

    assert told(tmp_path, state, *refused).count("companion_refused") == 1
