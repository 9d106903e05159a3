"""What people read about a worker that failed."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.agent.failure import ending_of
from slurm_elastic.rundir import RunDirectory


def test_the_first_line_names_the_worker_its_error_and_its_log_and_the_end_of_the_log_follows(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log = run.worker_log(3, "n2", 1)
    log.parent.mkdir(parents=True)
    log.write_text("step 7\nTraceback (most recent call last):\nValueError: no such thing\n")

    ending = ending_of(run, 3, "srun: error: n2: task 1: Exited with exit code 1\n", 1)

    first, *rest = ending.detail.splitlines()
    assert first == "n2-1: ValueError: no such thing (see logs/gen-0003/n2-1.log)"
    assert rest[0] == "step 7"
    assert ending.exit_code == 1
