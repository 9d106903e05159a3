"""Asking a running supervisor for something: a file in <run>/requests/, which it takes and removes."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from typing import Any

from slurm_elastic.cli.find_run import find_run
from slurm_elastic.cli.submitted import left_slurm, not_reported
from slurm_elastic.errors import RequestNotTaken, UserMistake
from slurm_elastic.observe.status import OVER, STALE_S, Status, read_status
from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.slurm import command_client

TAKEN_WITHIN_S = 15.0
LOOK_AGAIN_S = 0.1


def running(name: str) -> tuple[RunDirectory, Status]:
    """The run and its status. Raises UserMistake when it has ended or has not begun."""
    run = find_run(name)
    refuse_if_over(run)
    submitted, found = not_reported(run), read_status(run.status)
    if submitted is not None or found is None:
        job = f"base job {submitted.job_id}" if submitted else "its base job"
        raise UserMistake(
            f"the run {run.path} has not started: no supervisor of {job} has reported",
            fix=f"wait until it runs, or cancel it: `slurm-elastic stop {shlex.quote(str(run.path))}`",
        )
    refuse_if_left(run, found)
    return run, found


def refuse_if_left(run: RunDirectory, status: Status) -> None:
    """Raises UserMistake when nobody will ever take a request: the supervisor is silent and its job has left Slurm."""
    silent = time.time() - status.supervisor.time > STALE_S
    gone = left_slurm(run, status, command_client.CommandSlurm()) if silent else ""
    if gone:
        where = shlex.quote(str(run.path))
        raise UserMistake(
            f"nothing of the run {run.path} is left: {gone}",
            fix=f"`slurm-elastic submit {where}` goes on from its last checkpoint",
        )


def refuse_if_over(run: RunDirectory) -> None:
    """Raises UserMistake when the run has ended and was not submitted again."""
    where, found = shlex.quote(str(run.path)), read_status(run.status)
    if run.done.exists():
        raise UserMistake(
            f"the run {run.path} is over (finished)", fix=f"nothing is left to do; see `slurm-elastic status {where}`"
        )
    if found is not None and found.state in OVER and not_reported(run) is None:
        raise UserMistake(
            f"the run {run.path} is over ({found.state})",
            fix=f"nothing of it runs; `slurm-elastic submit {where}` would resume it from its last checkpoint",
        )


def ask(run: RunDirectory, request: dict[str, Any], within_s: float = TAKEN_WITHIN_S) -> None:
    """Put the request down and wait until it was taken. Raises RequestNotTaken; the request is withdrawn then."""
    path = run.requests / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    try:
        replace_json(path, request)
    except OSError as broken:
        raise UserMistake(f"cannot write {path}: {broken.strerror}", fix="are you the owner of this run?") from broken
    if not wait_until(lambda: not path.exists(), within_s) and _withdrawn(path):
        raise RequestNotTaken(
            f"the supervisor did not answer within {within_s:.0f} s; the request was withdrawn",
            fix=f"`slurm-elastic status {run.path}` shows when it was last seen; ask again when it is back",
        )


def wait_until(holds: Callable[[], bool], within_s: float) -> bool:
    """Whether `holds` became true within `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def _withdrawn(path: Any) -> bool:
    """False when it was taken at the last moment."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
