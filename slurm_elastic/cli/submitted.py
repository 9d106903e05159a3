"""<run>/submitted.json: the base job that `submit` sent, for the time until its supervisor reports.

Until then endpoint.json and status.json are those of the run's former life, or missing. A report counts as newer by
its epoch, which grows with every supervisor of a run: no clock is compared with another machine's.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from slurm_elastic.cli.no_slurm import for_people
from slurm_elastic.errors import RunDirectoryError, SlurmElasticError, UserMistake
from slurm_elastic.observe.status import Status, read_status
from slurm_elastic.rundir import RunDirectory, replace_text
from slurm_elastic.slurm.api import Job, SlurmClient
from slurm_elastic.slurm.run_jobs import comment_of
from slurm_elastic.slurm.states import Meaning, meaning

log = logging.getLogger(__name__)

FILE = "submitted.json"
BASE = "base-"  # start of the submit tokens of base jobs
_LOCK = ".submit.lock"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}  # file systems mounted without; Slurm is asked all the same


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    job_id: int
    time: float
    after_epoch: int = 0  # that of the last supervisor before it
    cancelled: bool = False  # by `stop`, before it started


class _Endpoint(msgspec.Struct, frozen=True):
    """What matters here of endpoint.json."""

    epoch: int = 0
    job_id: int = 0


@contextmanager
def one_at_a_time(run: RunDirectory) -> Iterator[None]:
    """While this lasts no other `submit` of the run does what it does. The lock ends with its process.

    Raises UserMistake when another one is at it, RunDirectoryError when there is no place for the lock.
    """
    path = run.path / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as broken:
        raise RunDirectoryError(f"cannot write {path}: {broken.strerror}", fix="check space and rights") from broken
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise UserMistake(
                f"another `submit` of the run in {run.path} is under way", fix="see `slurm-elastic status` in a moment"
            ) from taken
        except OSError as broken:
            if broken.errno not in _NO_LOCKS:
                raise RunDirectoryError(f"cannot lock {path}: {broken.strerror}", fix="try again") from broken
        yield
    finally:
        os.close(lock)


def last_epoch(run: RunDirectory) -> int:
    """The epoch of the newest supervisor so far; to be asked before the submission."""
    status = _readable_status(run)
    return max(_endpoint(run).epoch, status.supervisor.epoch if status else 0)


def record(run: RunDirectory, submitted: Submitted) -> None:
    """Durable when it returns."""
    replace_text(run.path / FILE, msgspec.json.encode(submitted).decode() + "\n")


def read_submitted(run: RunDirectory) -> Submitted | None:
    """What was submitted last, whatever became of it. A file that cannot be read counts as none, with a warning."""
    path = run.path / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Submitted)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as broken:
        log.warning("ignored, for it cannot be read (remove it): %s: %s", path, broken)
        return None


def not_reported(run: RunDirectory) -> Submitted | None:
    """The submitted base job while no supervisor of it has reported: what the run's files say is older then."""
    submitted = read_submitted(run)
    if submitted is None or submitted.cancelled:
        return None
    status = read_status(run.status)
    if status is None:
        return submitted
    epoch, endpoint = status.supervisor.epoch, _endpoint(run)
    theirs = endpoint.job_id == submitted.job_id and endpoint.epoch == epoch
    return None if theirs or epoch > submitted.after_epoch else submitted


def never_began(run: RunDirectory) -> bool:
    """No base job of it is known here and no supervisor has run; one that was submitted by hand may wait in Slurm."""
    return read_submitted(run) is None and read_status(run.status) is None


def ask_slurm(submitted: Submitted, slurm: SlurmClient) -> Job | str | None:
    """The job; None when Slurm does not know it any more; why Slurm cannot be asked."""
    try:
        return next(iter(slurm.jobs((submitted.job_id,))), None)
    except SlurmElasticError as away:
        return (for_people(away)[0].splitlines() or [""])[0]


def base_jobs(run: RunDirectory, slurm: SlurmClient) -> list[Job]:
    """Base jobs of the run that are not over, also those submitted by hand: found by the run's mark.

    Raises SlurmError when Slurm does not say.
    """
    jobs = slurm.jobs(token_prefix=comment_of(run, BASE))
    return [job for job in jobs if meaning(job.state, requeue=job.requeue) is not Meaning.OVER]


def left_slurm(run: RunDirectory, status: Status, slurm: SlurmClient) -> str:
    """In words, that no base job is left to a run whose supervisor is silent; "": one is, or nobody can say.

    Slurm is asked about this user's jobs only, so it says nothing of another user's run.
    """
    try:
        if run.path.stat().st_uid != os.geteuid() or base_jobs(run, slurm):
            return ""
    except (SlurmElasticError, OSError):
        return ""
    ids = [str(job.job_id) for job in status.jobs if job.role == "base"]
    return f"{' '.join(['base job', *ids])} has left Slurm before the run had stopped"


def _endpoint(run: RunDirectory) -> _Endpoint:
    """Nothing in it that cannot be read matters here: the supervisor itself complains about such a file."""
    try:
        return msgspec.json.decode(run.endpoint.read_bytes(), type=_Endpoint)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Endpoint()


def _readable_status(run: RunDirectory) -> Status | None:
    try:
        return read_status(run.status)
    except RunDirectoryError:
        return None
