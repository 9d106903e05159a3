"""The small readings: how a step ended, what a signal means, which steps are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.agent import leftovers, notices
from slurm_elastic.agent.failure import ending_of
from slurm_elastic.errors import SlurmUnknown
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.api import Job
from slurm_elastic.wire import messages as m


@pytest.mark.parametrize(
    ("said", "returncode", "expected"),
    [
        ("", 0, (0, 0)),
        ("srun: error: Node failure on n2\n", 0, (1, 0)),  # 22.05
        ("srun: error: Node failure on n2\n", 1, (1, 0)),  # 24.11
        ("srun: error: n2: task 0: Killed\n", 137, (137, 9)),
        ("srun: error: n2: tasks 0-1: Exited with exit code 3\nsrun: error: n2: task 2: Killed", 137, (3, 0)),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n", -9, (0, 9)),
        ("srun: error: Unable to create step for job 7: Insufficient GRES available\n", 1, (1, 0)),
    ],
)
def test_how_a_step_ended(tmp_path: Path, said: str, returncode: int, expected: tuple[int, int]) -> None:
    ending = ending_of(RunDirectory(tmp_path), 4, said, returncode)
    assert (ending.exit_code, ending.signal) == expected
    assert bool(ending.detail) == (expected != (0, 0))


def test_a_preemption_that_began_before_us_is_a_notice() -> None:
    assert notices.at_start(None) is None
    assert notices.at_start(Job(job_id=7, state="RUNNING", end_time=9e9)) is None
    begun = Job(job_id=7, state="RUNNING", preempt_time=100.0, end_time=120.0)
    assert notices.at_start(begun) == m.AgentNotice(source="slurm record", deadline=120.0)


@pytest.mark.parametrize(
    ("job", "source", "deadline"),
    [
        (None, "SIGTERM", None),
        (Job(job_id=7, state="RUNNING", end_time=9e9), "SIGTERM", None),
        (Job(job_id=7, state="RUNNING", end_time=1090.0), "SIGTERM, time limit", 1090.0),
        (
            Job(job_id=7, state="RUNNING", preempt_time=999.0, end_time=1020.0),
            "SIGTERM, preempted by Slurm's record",
            1020.0,
        ),
    ],
)
def test_a_signal_is_always_a_notice_and_slurms_record_says_why(
    job: Job | None, source: str, deadline: float | None
) -> None:
    assert notices.explain("SIGTERM", job, now=1000.0) == m.AgentNotice(source=source, deadline=deadline)


def test_a_controller_that_is_away_is_no_answer() -> None:
    class Away:
        def jobs(self, job_ids):
            raise SlurmUnknown("connect failure")

    assert notices.lookup_of(Away(), 7)() is None


def test_an_allocation_is_read_from_the_batch_environment() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[01-03]", "SLURM_RESTART_COUNT": "2"}
    allocation = notices.Allocation.of(environ)
    assert (allocation.nodes, allocation.restart_count) == (("n01", "n02", "n03"), 2)
    with pytest.raises(KeyError):
        notices.Allocation.of({})


def test_only_srun_steps_are_left_over(tmp_path: Path, environ: dict[str, str]) -> None:
    squeue, scancel, killed = tmp_path / "squeue", tmp_path / "scancel", tmp_path / "killed"
    rows = "7.batch|batch|n1\\n7.extern|extern|n[1-2]\\n7.0|gen-0003|n1\\n7.12|gen-0004|n1\\n7.13|gen-0004|n2\\n"
    squeue.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {killed}\n')
    squeue.chmod(0o755)
    scancel.chmod(0o755)
    path = {**environ, "PATH": f"{tmp_path}:{environ['PATH']}"}
    leftovers.kill_steps(7, path)
    leftovers.kill_steps(7, path, name="gen-0004", nodes=("n2",))
    leftovers.kill_steps(7, path, name="gen-0005")
    assert killed.read_text() == "--signal=KILL 7.0 7.12 7.13\n--signal=KILL 7.13\n"
    leftovers.kill_steps(7, environ)  # no controller: nothing is known, nothing is done
