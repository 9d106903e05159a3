"""events.jsonl: what happened in a run and why, one JSON object per line, for people and post-mortems.

Every line has `time` (Unix seconds), `kind`, `generation` and `reason`; the figures of its kind stand beside them.
The supervisor is the only writer. Readers skip lines they cannot read (a torn last one after a crash).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec


class Happening(msgspec.Struct, frozen=True):
    """One line. `figures`: what its kind has beside time, kind, generation and reason."""

    time: float
    kind: str
    generation: int
    reason: str
    figures: dict[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        """The line as it stands in the file."""
        head = {"time": self.time, "kind": self.kind, "generation": self.generation, "reason": self.reason}
        return head | {name: value for name, value in self.figures.items() if name not in head}


class EventLog:
    """Appends events; each is handed to the kernel before `append` returns, so that a killed writer loses none."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._out: IO[bytes] | None = None

    def append(self, kind: str, generation: int, reason: str = "", **figures: Any) -> Happening:
        """Raises OSError when the line could not be written (disk full): nothing else is affected by that."""
        event = Happening(round(self._clock(), 3), kind, generation, reason, figures)
        if self._out is None:
            self._out = open_for_append(self._path)
        body = msgspec.json.encode(event.as_json()) + b"\n"
        if self._out.write(body) != len(body):
            self.close()  # opening again starts a new line
            raise OSError(errno.ENOSPC, "an event was written in part", str(self._path))
        return event

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None


def open_for_append(path: Path) -> IO[bytes]:
    """Unbuffered, at the start of a line: what a killed writer left unfinished must not spoil the next line."""
    out = path.open("ab", buffering=0)
    if out.tell():
        with path.open("rb") as existing:
            existing.seek(-1, os.SEEK_END)
            torn = existing.read(1) != b"\n"
        if torn:
            out.write(b"\n")
    return out


def read_events(path: Path) -> Iterator[Happening]:
    """All events in the order they happened; none when there is no such file yet."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                if event := parse_event(line):
                    yield event
    except FileNotFoundError:
        return


def parse_event(line: bytes) -> Happening | None:
    """One line; None when it is no event (torn, empty, foreign)."""
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(raw, dict) or not isinstance(kind := raw.pop("kind", None), str):
        return None
    moment, generation = raw.pop("time", None), raw.pop("generation", 0)
    if not isinstance(moment, int | float) or not isinstance(generation, int):
        return None
    return Happening(float(moment), kind, generation, str(raw.pop("reason", "")), raw)
