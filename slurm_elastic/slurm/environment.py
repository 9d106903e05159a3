"""The environment that Slurm's commands may see.

Inside a job, `SLURM_*` variables are options in disguise: sbatch and srun would give the parent's task counts, nodes
and binding to the child. So they go, all but SLURM_CONF, and every number is passed as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

_DROPPED = (
    *("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SACCT_"),
    *("PMI_", "PMI2_", "PMIX_", "SPANK_"),
)
_KEPT = frozenset({"SLURM_CONF"})


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """For sbatch and srun. Also drops our own SLURM_ELASTIC_*: set what a child needs after this call."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_DROPPED)}


def for_queries(environ: Mapping[str, str]) -> dict[str, str]:
    """For everything whose output is parsed: no user's format or language, times as Unix seconds."""
    plain = {name: value for name, value in scrubbed(environ).items() if not name.startswith("LC_")}
    return {**plain, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
