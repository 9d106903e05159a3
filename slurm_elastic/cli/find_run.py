"""Finding the run that a command is about: by its directory, its run.yaml, or the id of any of its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.cli.submitted import read_submitted
from slurm_elastic.errors import RunDirectoryError, UserMistake
from slurm_elastic.observe.run_index import index_folder, is_run, known_runs
from slurm_elastic.observe.status import read_status
from slurm_elastic.rundir import RunDirectory


def find_run(name: str) -> RunDirectory:
    """The run that `name` (a run directory, a run.yaml or a job id) means. Raises UserMistake, RunDirectoryError."""
    path = Path(name)
    if path.is_file():
        path = _run_of_settings(path)
    if path.is_dir():
        if not is_run(path):
            raise UserMistake(
                f"{path} is not a run directory (it has no run.yaml and token)",
                fix="give the directory that `slurm-elastic submit` printed; `slurm-elastic status` lists your runs",
            )
        run = RunDirectory(path.resolve())
        run.check_safe()
        return run
    if name.isascii() and name.isdigit():
        return _run_of_job(int(name))
    raise UserMistake(f"no run directory {name}", fix="`slurm-elastic status` lists your runs")


def users_runs() -> Iterator[RunDirectory]:
    """Runs that this user submitted, and those in the current directory."""
    return known_runs(index_folder(os.environ), Path.cwd())


def _run_of_job(job_id: int) -> RunDirectory:
    for run in users_runs():
        try:
            status, submitted = read_status(run.status), read_submitted(run)
        except RunDirectoryError:
            continue  # one unreadable run, which the list shows as such, must not hide the others
        if status is not None and any(job.job_id == job_id for job in status.jobs):
            return run
        if submitted is not None and submitted.job_id == job_id:
            return run
    raise UserMistake(
        f"job {job_id} is in none of your runs now",
        fix="`slurm-elastic status` lists your runs; name the run directory",
    )


def _run_of_settings(file: Path) -> Path:
    from slurm_elastic.config import load

    path = Path(load(file).run.dir)
    if not path.is_dir():
        raise UserMistake(
            f"the run of {file} was never submitted: there is no {path} (its run.dir)",
            fix=f"`slurm-elastic submit {file}` starts it; `slurm-elastic status` lists your runs",
        )
    return path
