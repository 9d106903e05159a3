"""What people are told when no Slurm can be reached, instead of the many lines that Slurm's own commands print."""

from __future__ import annotations

import re

from slurm_elastic.errors import SlurmCommandError, SlurmElasticError, SlurmUnknown

NO_SLURM = "no Slurm can be reached from here"
NO_SLURM_FIX = "run this on a login node, or set SLURM_CONF to the cluster's slurm.conf; `scontrol ping` tests it"
_NO_CLUSTER = re.compile(
    r"Could not establish a configuration source|failed to fetch config|DNS SRV lookup failed"
    r"|Unable to (?:process|open) .*configuration",
    re.IGNORECASE,
)
_ASK_AGAIN = "try again when `scontrol ping` answers; `squeue --me` shows whether it was done all the same"


def for_people(error: SlurmElasticError) -> tuple[str, str]:
    """The problem and what to do about it; there is always something to do."""
    if isinstance(error, SlurmCommandError | SlurmUnknown) and _NO_CLUSTER.search(error.problem):
        return NO_SLURM, NO_SLURM_FIX
    if isinstance(error, SlurmUnknown):
        return error.problem, error.fix or _ASK_AGAIN
    return error.problem, error.fix or "see `slurm-elastic COMMAND --help`; -vv shows what was done"
