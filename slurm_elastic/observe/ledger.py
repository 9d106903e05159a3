"""ledger.jsonl: one line per committed optimizer step, in order, without gaps. The proof that no sample was lost.

    {"step","generation","world","samples","samples_sha256","loss","lr","time"}

Under a supervisor it is the only writer. When training goes back to a checkpoint, `rewind` cuts the lines of the
steps that will be done again; so the finished file has exactly one line per step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from slurm_elastic.observe.events import open_for_append
from slurm_elastic.rundir import sync_directory
from slurm_elastic.wire.messages import StepDone


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    step: int  # from 1
    generation: int
    world: int
    samples: int
    samples_sha256: str
    loss: float | None = None
    lr: float | None = None
    time: float = 0.0  # Unix seconds when it was committed


class Ledger:
    """Not thread-safe; call it from one thread. Opening cuts off a last line that a crash tore. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._out: IO[bytes] | None = None
        self._last: LedgerLine | None = None
        self._cut_after(None)

    @property
    def last(self) -> LedgerLine | None:
        """The newest line, None while there is none."""
        return self._last

    def append(self, generation: int, steps: Sequence[StepDone]) -> int:
        """Write the steps that are not in it yet (messages may come twice); how many these were.

        Raises OSError (disk full): the file stays whole, and the same call may be made again.
        """
        after = self._last.step if self._last else 0
        lines = [_line(generation, done) for done in steps if done.step > after]
        if not lines:
            return 0
        if self._out is None:
            self._out = open_for_append(self._path)
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            if (written := self._out.write(body)) != len(body):
                raise OSError(errno.ENOSPC, f"only {written} of {len(body)} bytes were written", str(self._path))
        except OSError:
            self.close()
            self._cut_after(None)  # whole lines that got through stay, and count
            raise
        self._last = lines[-1]
        return len(lines)

    def rewind(self, step: int) -> int:
        """Cut the lines of steps after `step`, durably, before a generation resumes from it; how many these were."""
        self.close()
        return self._cut_after(step)

    def sync(self) -> None:
        """What was appended survives a power loss once this returns."""
        if self._out is not None:
            os.fsync(self._out.fileno())

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def _cut_after(self, step: int | None) -> int:
        """Truncating is one step for readers and for a crash: the file ends after a whole line at any time."""
        if not self._path.exists():
            self._last = None
            return 0
        keep_bytes, dropped, cutting = 0, 0, False
        last = None
        with self._path.open("rb") as lines:
            for raw in lines:
                line = parse_line(raw)
                torn = line is None and not raw.endswith(b"\n")
                cutting = cutting or torn or (line is not None and step is not None and line.step > step)
                if cutting:
                    dropped += line is not None
                else:
                    keep_bytes += len(raw)
                    last = line or last
        if keep_bytes != self._path.stat().st_size:
            with self._path.open("r+b") as out:
                out.truncate(keep_bytes)
                os.fsync(out.fileno())
            sync_directory(self._path.parent)
        self._last = last
        return dropped


def read_ledger(path: Path) -> Iterator[LedgerLine]:
    """One line per step, in order: of a repeated step the last line counts. Torn and foreign lines are skipped."""
    latest: dict[int, LedgerLine] = {}
    try:
        with path.open("rb") as lines:
            for raw in lines:
                if line := parse_line(raw):
                    latest[line.step] = line
    except FileNotFoundError:
        return
    for step in sorted(latest):
        yield latest[step]


def parse_line(raw: bytes) -> LedgerLine | None:
    try:
        return msgspec.json.decode(raw, type=LedgerLine)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class Audit:
    """Against a run of fixed size (or itself): samples that steps should have had and did not, and the reverse."""

    steps: int
    samples_lost: int
    samples_repeated: int
    missing: tuple[int, ...] = ()  # steps without a line
    different: tuple[int, ...] = ()  # steps with other samples than the reference has

    @property
    def clean(self) -> bool:
        return not (self.missing or self.different)


def audit(lines: Iterable[LedgerLine], reference: Mapping[int, LedgerLine] | None = None, *, after: int = 0) -> Audit:
    """Whether every step from `after` + 1 on is there and, with a `reference` (by step), used exactly its samples.

    Without one, a missing step is all that can be seen: its samples were lost.
    """
    ours = {line.step: line for line in lines}
    last = max(ours, default=0)
    typical = ours[last].samples if ours else 0
    missing = tuple(step for step in range(after + 1, last + 1) if step not in ours)
    known = reference or {}
    different = tuple(
        step for step, line in ours.items() if step in known and line.samples_sha256 != known[step].samples_sha256
    )
    return Audit(
        steps=len(ours),
        samples_lost=sum(known[step].samples if step in known else typical for step in missing)
        + sum(known[step].samples for step in different),
        samples_repeated=sum(ours[step].samples for step in different),
        missing=missing,
        different=different,
    )


def _line(generation: int, done: StepDone) -> LedgerLine:
    return LedgerLine(
        step=done.step,
        generation=generation,
        world=done.world,
        samples=done.samples,
        samples_sha256=done.samples_sha256,
        loss=done.loss,
        lr=done.lr,
        time=done.time,
    )
