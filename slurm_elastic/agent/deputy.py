"""Brings the base job back when its batch host is dead.

Under --no-kill a job of two or more nodes outlives its batch host: Slurm takes the node out of the job, which then
runs on without its batch script, and so without a supervisor, until its time limit (Slurm 22.05 to 26.05). Nothing in
Slurm restarts it; any process of the same user may. A deputy therefore runs beside every companion's agent, and on a
second node of the base job: it watches whether the supervisor still writes status.json, and when that stops it asks
Slurm whether the base job has lost its batch host. Only then it requeues the job. Several deputies do no harm: the
second requeue is refused by Slurm.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from slurm_elastic.agent.death import die_with_parent
from slurm_elastic.errors import SlurmError, SlurmUnknown
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.api import Job, SlurmClient

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
LOOK_EVERY_S = 5.0


class _Endpoint(msgspec.Struct, frozen=True):
    job_id: int = 0


def has_lost_its_batch_host(job: Job) -> bool:
    """Whether Slurm runs the job without the node that ran its script."""
    return job.state == "RUNNING" and bool(job.batch_host) and bool(job.nodes) and job.batch_host not in job.nodes


@dataclass(slots=True)
class Silence:
    """How long a file has not changed, by our own clock: clocks of other nodes do not matter."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    _seen: bytes = b""
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def seconds(self) -> float:
        try:
            now = self.path.read_bytes()
        except OSError:
            now = self._seen  # missing or unreadable: as if unchanged
        if now != self._seen:
            self._seen, self._since = now, self.clock()
        return self.clock() - self._since


def look(run: RunDirectory, slurm: SlurmClient) -> str:
    """One look at the base job while the supervisor is silent; requeues it if its batch host is dead.

    Returns what was found: "requeued", "alive", "unknown" or "gone". Raises nothing for a Slurm that is away.
    """
    try:
        job_id = msgspec.json.decode(run.endpoint.read_bytes(), type=_Endpoint).job_id
    except (OSError, msgspec.MsgspecError):
        return "unknown"
    try:
        found = slurm.jobs([job_id])
        if not found:
            return "gone"
        if not has_lost_its_batch_host(found[0]):
            return "alive"
        slurm.requeue(job_id)
    except SlurmUnknown as away:
        log.info("Slurm does not answer: %s", away.problem)
        return "unknown"
    except SlurmError as refused:
        log.warning("could not requeue the base job: %s", refused.problem)
        return "unknown"
    log.warning("requeued base job %d: its batch host %s is dead", job_id, found[0].batch_host)
    return "requeued"


def watch(run: RunDirectory, slurm: SlurmClient, *, patience_s: float = PATIENCE_S) -> None:
    """Until the run is done or its base job is gone. Asks Slurm only while the supervisor is silent."""
    silence = Silence(run.status)
    while not run.done.exists():
        time.sleep(LOOK_EVERY_S)
        if silence.seconds() < patience_s:
            continue
        found = look(run, slurm)
        if found == "gone":
            return
        if found == "requeued":
            silence = Silence(run.status)


@click.command()
@click.option("--run-dir", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
def main(run_dir: Path) -> None:
    """Bring the base job of RUN-DIR back when its batch host dies (started by slurm-elastic itself)."""
    from slurm_elastic.slurm.command_client import CommandSlurm

    die_with_parent()
    run = RunDirectory(run_dir)
    logging.basicConfig(
        filename=run.logs / f"deputy-{os.uname().nodename}.log",
        level=logging.INFO,
        format="%(asctime)s %(message)s",
    )
    watch(run, CommandSlurm())


if __name__ == "__main__":
    main()
