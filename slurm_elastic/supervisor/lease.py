"""One supervisor per run: epochs, and the end of those that were overtaken.

Two supervisors can be alive at once: behind a cut network the old batch host goes on while Slurm has started
the requeued job elsewhere. Each start claims the next epoch by creating a file that must not exist yet; a
supervisor that sees a higher epoch in endpoint.json stops and writes nothing more.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_elastic.errors import RunDirectoryError, Superseded
from slurm_elastic.rundir import RunDirectory, replace_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who wants to supervise the run."""

    node: str
    pid: int
    job_id: int
    restart_count: int  # SLURM_RESTART_COUNT: tells the requeued start of a job from the one before


@dataclass(slots=True)
class Lease:
    """The right to write into a run directory, under `epoch`."""

    run: RunDirectory
    claimant: Claimant
    epoch: int
    _seen: tuple[int, int] = field(default=(0, 0))  # inode and change time of endpoint.json when last read
    _place: dict[str, Any] = field(default_factory=dict)  # what we published there

    def publish(self, host: str, port: int) -> None:
        """Tell everyone where to connect. From here on, supervisors of older epochs stop."""
        self.check()
        who = self.claimant
        place = {"epoch": self.epoch, "host": host, "port": port, "pid": who.pid, "node": who.node}
        self._place = {**place, "job_id": who.job_id, "restart_count": who.restart_count}
        replace_json(self.run.endpoint, self._place)

    def check(self) -> None:
        """Raises Superseded when a newer supervisor has taken over. Costs one `stat` when nothing changed."""
        try:
            now = self.run.endpoint.stat()
        except FileNotFoundError:
            return
        mark = (now.st_ino, now.st_mtime_ns)
        if mark == self._seen:
            return
        found = read_endpoint(self.run)
        theirs = int(found.get("epoch", 0)) or max(_claimed(self.run), default=0)
        if theirs > self.epoch:
            raise Superseded(f"supervisor of epoch {theirs} has taken over; this one has epoch {self.epoch}")
        if not found and self._place:
            replace_json(self.run.endpoint, self._place)  # damaged: nobody would find us
            return
        self._seen = mark


def claim(run: RunDirectory, claimant: Claimant) -> Lease:
    """The next epoch, for this claimant alone. Supervisors of older epochs stop from here on, so only after this
    may the journal be read: nobody else appends to it any more.

    Raises Superseded when endpoint.json shows a later start of
    the same job: then this start is the ghost of a node that Slurm has given up.
    """
    before = read_endpoint(run)
    theirs = int(before.get("restart_count", 0))
    if int(before.get("job_id", 0)) == claimant.job_id and theirs > claimant.restart_count:
        raise Superseded(f"restart {theirs} of job {claimant.job_id} supervises this run, not {claimant.restart_count}")
    folder = _epochs(run)
    folder.mkdir(mode=0o755, exist_ok=True)
    taken = _claimed(run)
    epoch = max([int(before.get("epoch", 0)), *taken]) + 1
    while not _create(folder, epoch):
        epoch += 1
    for old in taken:
        if old < epoch - 10:
            (folder / str(old)).unlink(missing_ok=True)
    lease = Lease(run, claimant, epoch)
    if before:
        lease.publish(str(before.get("host", "")), int(before.get("port", 0)))  # nobody listens there any more
    return lease


def read_endpoint(run: RunDirectory) -> dict[str, Any]:
    """What endpoint.json says; {} before the first supervisor, and when it is damaged: the epochs are known without it.

    Raises RunDirectoryError when it cannot be read at all.
    """
    try:
        raw = run.endpoint.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as broken:
        raise RunDirectoryError(f"cannot read {run.endpoint}: {broken.strerror}", fix="check your rights") from broken
    try:
        found = json.loads(raw)
    except ValueError:  # also for bytes that are no text
        found = None
    if isinstance(found, dict) and isinstance(found.get("epoch"), int):
        return found
    log.warning("%s is damaged; it is written anew", run.endpoint)
    return {}


def _epochs(run: RunDirectory) -> Path:
    return run.path / "epochs"


def _claimed(run: RunDirectory) -> list[int]:
    """Epochs that were claimed, but for those long ago."""
    folder = _epochs(run)
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []


def _create(folder: os.PathLike[str], epoch: int) -> bool:
    try:
        os.close(os.open(os.path.join(folder, str(epoch)), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # noqa: PTH118
    except FileExistsError:
        return False
    return True
