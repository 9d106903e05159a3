"""What a failed Slurm command means. The one place that looks at Slurm's wording.

SlurmUnknown                   nobody answered: the order may or may not have been carried out, nothing is known
SlurmCommandError retryable    Slurm said no for now: limits, rates, a partition that is down
SlurmCommandError              Slurm said no: the same words will get the same answer
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown

_NOBODY_ANSWERED = re.compile(
    r"Unable to contact slurm controller"
    r"|Unable to contact slurmdbd|Problem talking to the database"
    r"|Socket timed out|Connection (?:refused|timed out|reset)|No route to host"
    r"|Zero Bytes were transmitted|Transport endpoint is not connected"
    r"|controller in standby mode|Unexpected message received"
    # commands that take their settings from the controller, while it is away
    r"|Could not establish a configuration source|failed to fetch config|DNS SRV lookup failed"
    # srun in a live job while the controller is away
    r"|Expired or invalid job"
    # the authentication daemon of this machine, not the request
    r"|Munge encode failed|Failed to access \".*munge|Protocol authentication error|auth_p_create",
    re.IGNORECASE,
)
_NOT_NOW = re.compile(
    r"temporarily unable to accept job|Resource temporarily unavailable|rate limit|RPC limit"
    r"|job submit limit|MaxSubmit|QOSMax|AssocMax|AssocGrp|QOSGrp|MaxJobs"
    r"|configuration not available now|partition not available|node not available"
    r"|temporarily disabled|currently disabled|Slurmctld.*busy",
    re.IGNORECASE,
)
_GONE = re.compile(r"Invalid job id|already completing or completed|has already finished", re.IGNORECASE)
_PENDING = re.compile(r"Job is pending execution", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"not running a supported accounting_storage|Slurm accounting storage is disabled", re.I)


def refusal(argv: Sequence[str], code: int, said: str) -> SlurmUnknown | SlurmCommandError:
    """The error to raise for a command that exited with `code` and `said` that."""
    if _NOBODY_ANSWERED.search(said):
        return SlurmUnknown(f"`{argv[0]}` got no answer: {said.strip()}")
    return SlurmCommandError(argv, code, said, retryable=_NOT_NOW.search(said) is not None)


def job_is_gone(refused: SlurmCommandError) -> bool:
    """Slurm does not know the job any more, or it has ended."""
    return _GONE.search(refused.stderr) is not None


def job_is_pending(refused: SlurmCommandError) -> bool:
    """The job waits in the queue already."""
    return _PENDING.search(refused.stderr) is not None


def no_accounting(refused: SlurmCommandError) -> bool:
    """This cluster keeps no accounts, so it has no QOS."""
    return _NO_ACCOUNTING.search(refused.stderr) is not None
