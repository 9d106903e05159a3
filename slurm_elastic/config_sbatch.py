"""`base.sbatch`: further options of sbatch, and the ones that would break an elastic run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_OWN_KEY = {
    "nodes": "base.nodes and elastic.companion_nodes",
    "partition": "base.partition and elastic.partition",
    "qos": "base.qos and elastic.qos",
    "account": "base.account",
    "time": "base.time and elastic.time",
    "job-name": "run.name",
    "chdir": "run.workdir",
    "gpus-per-node": "base.gpus_per_node",
    "ntasks-per-node": "base.workers_per_node",
    "cpus-per-task": "base.cpus_per_worker",
    "export": "run.env",
}
_REASON = {
    "requeue": "who is requeued is decided by slurm-elastic: the base job is, companions never are",
    "no-requeue": "who is requeued is decided by slurm-elastic: the base job is, companions never are",
    "no-kill": "it is always set: a job must outlive the loss of one of its nodes",
    "array": "each array task would be a copy of the run that writes the same files",
    "output": "logs go into the run directory, where `status` finds them",
    "error": "logs go into the run directory, where `status` finds them",
    "open-mode": "logs are always appended: a requeue must not truncate them",
    "input": "the batch script reads nothing",
    "signal": "the notice signal is set by slurm-elastic, so that it reaches the agent exactly",
    "dependency": "a companion that waits for another job never starts",
    "comment": "it holds the token by which a submitted job is found again",
    "parsable": "slurm-elastic reads sbatch's answer itself",
    "test-only": "nothing would ever be submitted; use `slurm-elastic check`",
    "wait": "submitting would not return before the job ends",
    "wrap": "the batch script is written by slurm-elastic",
    "export-file": "the environment of jobs is set by slurm-elastic; use run.env",
    "get-user-env": "the environment of jobs is set by slurm-elastic; use run.env",
    "ntasks": "the number of tasks follows from nodes and workers per node",
    "ntasks-per-core": "the number of tasks follows from nodes and workers per node",
    "ntasks-per-gpu": "the number of tasks follows from nodes and workers per node",
    "ntasks-per-socket": "the number of tasks follows from nodes and workers per node",
    "gpus": "a count for the whole job does not fit jobs of several sizes; use base.gpus_per_node",
    "gpus-per-task": "the batch job has one task; use base.gpus_per_node",
    "gpus-per-socket": "use base.gpus_per_node",
    "clusters": "base and companions must be in one cluster, the one that is asked about them",
    "cluster": "base and companions must be in one cluster, the one that is asked about them",
    "hold": "a held companion never starts; hold the base job with scontrol instead",
    "uid": "all jobs of a run belong to one user",
    "gid": "all jobs of a run belong to one user",
    "time-min": "Slurm could shorten the job to less than the run plans with",
    "help": "it is not an option of a job",
    "usage": "it is not an option of a job",
    "version": "it is not an option of a job",
}
_NAME = re.compile(r"[a-z][a-z0-9-]{1,63}", re.ASCII)


def sbatch_faults(options: Mapping[str, str | bool]) -> Iterator[tuple[str, str]]:
    """(option, reason) for each that is malformed or would break the run."""
    for name, value in options.items():
        plain = name.lstrip("-").replace("_", "-").lower()
        if _NAME.fullmatch(name) is None:
            fixed = f"; write {plain!r}" if _NAME.fullmatch(plain) else ""
            yield name, f"is not a long option name without dashes{fixed}"
        if plain in _OWN_KEY:
            yield name, f"is refused: use {_OWN_KEY[plain]}"
        elif plain in _REASON:
            yield name, f"is refused: {_REASON[plain]}"
        elif plain == "gres" and isinstance(value, bool):
            yield name, "needs a value"
        if isinstance(value, str) and (not value.isprintable() or not value):
            yield name, "needs a value of printable characters in one line; write true for an option without a value"


def refused_options() -> dict[str, str]:
    """Every refused option with its reason, for the documentation."""
    return {name: f"use {key}" for name, key in _OWN_KEY.items()} | _REASON
