"""What the supervisor keeps on disk about training: ledger lines, published checkpoints. One thread, in order.

The order is what makes it safe: ledger lines of a checkpoint's steps are durable before the checkpoint is public,
and what a generation saved is public before the next one picks what to resume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from slurm_elastic.checkpoint import publish, retention
from slurm_elastic.checkpoint.publish import Found
from slurm_elastic.errors import CheckpointError
from slurm_elastic.observe.ledger import Ledger
from slurm_elastic.supervisor.lease import Lease
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

T = TypeVar("T")
Marks = tuple[tuple[str, int, int, int], ...]  # of each file: path, size, time of its last change, inode


@dataclass(frozen=True, slots=True)
class Published:
    """`problem` is "" when the checkpoint is public."""

    name: str
    problem: str = ""


@dataclass(slots=True)
class Records:
    """All methods return at once or when the one disk thread is done; none blocks the loop."""

    ledger: Ledger
    checkpoints: Path
    keep: int
    lease: Lease
    warn: Callable[[str], None]
    _verified: Marks = ()  # the files whose contents were last known to be good, as they were then
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "records"))

    async def add_steps(self, generation: int, steps: Sequence[m.StepDone]) -> None:
        await self._do(lambda: self.ledger.append(generation, steps))

    async def rewind(self, step: int) -> int:
        """Drop the ledger's lines after `step`: those steps will be done again. How many lines."""
        return await self._do(lambda: self.ledger.rewind(step))

    async def write(self, work: Callable[[], None]) -> None:
        """Any other writing that must keep its place in the order."""
        await self._do(work)

    async def settled(self) -> None:
        """Returns when all that was begun before is on the disk."""
        await self._do(lambda: None)

    async def publish(self, saved: m.Saved) -> Published:
        """Make a saved checkpoint public, move `latest`, delete old ones. A refusal is an answer, not an error."""
        return await self._do(lambda: self._publish(saved))

    async def newest(self, *, saved: bool, suspect: bool) -> tuple[str, int]:
        """Name and step of the newest loadable checkpoint; ("", 0) when there never was one. Damage is reported loudly.

        `saved`: this run has published one before. `suspect`: nothing was committed after the last load; read it all.
        Raises CheckpointError when none is left that can be used: starting from nothing is not ours to decide.
        """
        found = await self._do(lambda: self._newest(suspect))
        for warning in found.warnings:
            self.warn(warning)
        if found.checkpoint is None and found.warnings:
            raise CheckpointError(f"no checkpoint can be used: {found.warnings[0]}")
        if found.checkpoint is None and saved and (last := self.ledger.last) is not None:
            raise CheckpointError(
                f"the ledger has {last.step} steps, but there is no checkpoint in {self.checkpoints}: "
                "is the file system mounted?"
            )
        return (found.checkpoint.name, found.checkpoint.step) if found.checkpoint else ("", 0)

    async def close(self) -> None:
        await self._do(self.ledger.close)
        self._thread.shutdown(wait=False)

    def _newest(self, suspect: bool) -> Found:
        """Contents are read once per change of the files: more would only lengthen the stall of a healthy restart."""
        found = publish.newest(self.checkpoints, thorough=False)
        if found.checkpoint is None:
            return found
        marks = _marks(found.checkpoint.path)
        if marks and marks == self._verified and not suspect:
            return found
        thorough = publish.newest(self.checkpoints)
        # marks are those from before the reading; an older checkpoint is read again next time
        same = thorough.checkpoint is not None and thorough.checkpoint.path == found.checkpoint.path
        self._verified = marks if same else ()
        return replace(thorough, warnings=found.warnings + thorough.warnings)

    def _publish(self, saved: m.Saved) -> Published:
        self.lease.check()
        self.ledger.sync()
        try:
            path = publish.publish(self.checkpoints, saved.directory, saved.step)
        except CheckpointError as refused:
            return Published(saved.directory, refused.problem)
        self._verified = _marks(path)
        pruned = retention.prune(self.checkpoints, self.keep, generation=saved.generation)
        for warning in pruned.warnings:
            log.warning("retention problem=%s", warning)
        return Published(path.name)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _marks(directory: Path) -> Marks:
    """What a change of any file in it would change, short of a disk's own errors; () when it cannot be seen."""
    try:
        facts = [(path, path.stat()) for path in sorted(directory.iterdir())]
    except OSError:
        return ()
    return tuple((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in facts)
