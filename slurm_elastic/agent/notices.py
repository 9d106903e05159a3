"""This job's own record in Slurm: its nodes at the start, and whether (and when) it will go away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slurm_elastic.errors import MissingDependency, SlurmError
from slurm_elastic.slurm.api import Job, SlurmClient
from slurm_elastic.slurm.hostlist import expand
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

# A signal this long before the end of the job can only be the time limit's warning.
TIME_LIMIT_S = 900.0

Lookup = Callable[[], Job | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What the batch script's environment says about its job. True at the start only."""

    job_id: int
    nodes: tuple[str, ...]
    restart_count: int
    qos: str
    cpus_per_node: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation:
        """Raises KeyError when this is not a Slurm job."""
        return cls(
            job_id=int(environ["SLURM_JOB_ID"]),
            nodes=tuple(expand(environ.get("SLURM_JOB_NODELIST", ""))),
            restart_count=int(environ.get("SLURM_RESTART_COUNT", "0")),
            qos=environ.get("SLURM_JOB_QOS", ""),
            cpus_per_node=int(environ.get("SLURM_CPUS_ON_NODE", "1")),
        )


def lookup_of(slurm: SlurmClient, job_id: int) -> Lookup:
    """A function that asks Slurm for this job; None when Slurm does not answer or does not know it."""

    def lookup() -> Job | None:
        try:
            found = slurm.jobs([job_id])
        except (SlurmError, MissingDependency) as silent:
            log.warning("cannot look at job %d: %s", job_id, silent.problem)
            return None
        return found[0] if found else None

    return lookup


def at_start(job: Job | None) -> m.AgentNotice | None:
    """The notice that no signal will bring: the preemption began before this process did."""
    if job is None or job.preempt_time is None:
        return None
    return m.AgentNotice(source="slurm record", deadline=job.end_time)


def explain(signal_name: str, job: Job | None, now: float) -> m.AgentNotice:
    """What a signal means by Slurm's record. A signal is a notice even when the record says nothing."""
    if job is None or job.end_time is None:
        return m.AgentNotice(source=signal_name)
    if job.preempt_time is not None:
        return m.AgentNotice(source=f"{signal_name}, preempted by Slurm's record", deadline=job.end_time)
    if now < job.end_time < now + TIME_LIMIT_S:
        return m.AgentNotice(source=f"{signal_name}, time limit", deadline=job.end_time)
    return m.AgentNotice(source=signal_name)
