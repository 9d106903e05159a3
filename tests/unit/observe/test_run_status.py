from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.machine.state import Generation, State, Suspect
from slurm_elastic.observe.status import Figures, read_status, status_of, write_status


def changed(state: State, job_id: int, **fields: Any) -> State:
    allocations = tuple(msgspec.structs.replace(a, **fields) if a.job_id == job_id else a for a in state.allocations)
    return msgspec.structs.replace(state, allocations=allocations)


def kinds(state: State, figures: Figures) -> list[str]:
    return [problem.kind for problem in status_of(state, figures).problems]


def test_a_healthy_run_shows_its_nodes_by_job_and_no_problems(state: State, figures: Figures) -> None:
    shown = status_of(state, figures)

    assert (shown.state, shown.generation, shown.nodes, shown.workers, shown.wanted_nodes) == ("training", 3, 3, 3, 5)
    assert [(job.job_id, job.role, job.status, job.training) for job in shown.jobs] == [
        (1, "base", "joined", ("n1", "n2")),
        (2, "companion", "joined", ("n3",)),
        (3, "companion", "pending", ()),
    ]
    assert (shown.pending_companions, shown.problems) == (1, ())
    assert shown.last_transition is not None and shown.last_transition.reason == "idle nodes"


def test_a_status_reads_back_as_written(state: State, figures: Figures, tmp_path: Path) -> None:
    shown = status_of(state, figures)
    write_status(tmp_path / "status.json", shown)

    assert read_status(tmp_path / "status.json") == shown
    assert read_status(tmp_path / "absent") is None
    (tmp_path / "status.json").write_text('{"version":1}')
    with pytest.raises(RunDirectoryError, match=r"status\.json"):
        read_status(tmp_path / "status.json")


def test_a_notice_shows_with_its_deadline_and_is_a_problem_only_when_overdue(state: State, figures: Figures) -> None:
    noticed = changed(state, 2, notice="SIGUSR1", noticed_at=950.0, deadline=990.0)

    job = status_of(noticed, figures).jobs[1]
    assert (job.status, job.notice, job.notice_deadline) == ("leaving", "SIGUSR1", 990.0)
    assert kinds(noticed, figures) == []
    assert kinds(changed(noticed, 2, deadline=900.0), figures) == ["preemption_overdue"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"slurm_silent_since": 940.0}, "slurm_unknown"),
        ({"never_joined": 2}, "never_joined"),
        ({"submit_blocked": "Invalid qos"}, "companion_refused"),
        ({"grow_until": 1060.0}, "back_off"),
        ({"submit_until": 1060.0}, "back_off"),
        ({"failures": 2, "first_failure": "n3 rank 2: exit 1"}, "worker_failed"),
        ({"phase": "waiting"}, "waiting"),
        ({"suspects": (Suspect(node="n3", job_id=2, reason="lost"),)}, "suspect_node"),
    ],
)
def test_each_trouble_of_the_machine_is_named(
    state: State, figures: Figures, fields: dict[str, Any], kind: str
) -> None:
    assert kinds(msgspec.structs.replace(state, **fields), figures) == [kind]


def test_a_back_off_that_is_over_is_no_problem(state: State, figures: Figures) -> None:
    assert kinds(msgspec.structs.replace(state, grow_until=999.0, submit_until=500.0), figures) == []


def test_suspended_and_silent_jobs_are_named(state: State, figures: Figures) -> None:
    assert kinds(changed(state, 2, suspended=True), figures) == ["suspended"]
    assert kinds(changed(state, 2, contact="silent", silent_since=980.0), figures) == ["silent"]


def test_training_without_steps_is_a_problem_after_a_while_that_fits_its_pace(state: State, figures: Figures) -> None:
    late = msgspec.structs.replace(figures, step_time=900.0)

    assert kinds(state, late) == ["stalled"]
    assert kinds(state, msgspec.structs.replace(late, steps_per_s=0.1)) == []
    assert kinds(state, msgspec.structs.replace(late, step_time=0.0)) == []


def test_refused_peers_and_warnings_are_shown_with_their_counts(state: State, figures: Figures) -> None:
    peers = {"10.0.0.9": 3, "10.0.0.8": 7}
    noisy = msgspec.structs.replace(figures, refused_peers=peers, warnings=("handler replaced",))

    first, second = status_of(state, noisy).problems
    assert first.problem == "refused connections from 10.0.0.8 (7), 10.0.0.9 (3)"
    assert (second.kind, second.problem) == ("warning", "handler replaced")


@pytest.mark.parametrize("phase", ["finished", "stopped", "failed"])
def test_of_a_run_that_is_over_nothing_is_left(phase: Any, state: State, figures: Figures) -> None:
    shown = status_of(msgspec.structs.replace(state, phase=phase), figures)

    assert (shown.jobs, shown.nodes, shown.workers, shown.pending_companions) == ((), 0, 0, 0)
    assert (shown.state, shown.standby) == (phase, None)


@pytest.mark.parametrize(("phase", "left"), [("finished", []), ("stopped", ["worker_failed"])])
def test_a_run_that_is_over_has_no_problems_but_the_failures_it_ended_with(
    phase: Any, left: list[str], state: State, figures: Figures
) -> None:
    noisy = {"grow_until": 1060.0, "submit_blocked": "Invalid qos", "slurm_silent_since": 940.0, "failures": 2}

    assert kinds(msgspec.structs.replace(state, phase=phase, **noisy), figures) == left


def test_no_pause_is_told_while_new_workers_warm_up(state: State, figures: Figures) -> None:
    following = Generation(number=4, members=(), launched_at=990.0)

    assert kinds(msgspec.structs.replace(state, grow_until=1060.0, next=following), figures) == []
