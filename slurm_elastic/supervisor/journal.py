"""The journal: every event that mattered, with the orders it led to, one JSON object per line.

A line is on the disk before its orders are carried out; reading it back through `step` gives the state again.
A last line without its newline was never acted upon: it is ignored, and cut off by the next writer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec.structs import replace

from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.machine.actions import Action
from slurm_elastic.machine.events import Event, TimePassed
from slurm_elastic.machine.policy import Policy
from slurm_elastic.machine.state import State, initial
from slurm_elastic.machine.step import step


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: an event and its orders, or the policy that holds from here on."""

    time: float
    event: Event | None = None
    actions: tuple[Action, ...] = ()
    reason: str = ""
    policy: Policy | None = None


class Journal:
    """Appends to one file. Only one process may hold it; the supervisor's lease sees to that."""

    def __init__(self, path: Path) -> None:
        """Opens (or creates) the file and cuts a torn last line off. Raises RunDirectoryError."""
        self.path = path
        self._encode = msgspec.json.Encoder().encode
        try:
            self._file = path.open("ab")
            self._file.truncate(_whole_bytes(path))
        except OSError as broken:
            raise RunDirectoryError(f"cannot write {path}: {broken.strerror}", fix="check rights and space") from broken

    def append(
        self, now: float, event: Event, actions: tuple[Action, ...], reason: str = "", *, changed: bool = True
    ) -> None:
        """Durable when it returns. `changed`: whether `step` returned another state.

        What changed nothing and ordered nothing is not written; a TimePassed without orders never changes anything.
        """
        if actions or (changed and not isinstance(event, TimePassed)):
            self._write(Entry(time=now, event=event, actions=actions, reason=reason))

    def note_policy(self, now: float, policy: Policy) -> None:
        """Write down which policy decides from here on: run.yaml may have been edited since the last start."""
        last = None
        for entry in read(self.path):
            last = entry.policy or last
        if last != policy:
            self._write(Entry(time=now, policy=policy))

    def _write(self, entry: Entry) -> None:
        self._file.write(self._encode(entry) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[Entry]:
    """The entries in order; nothing for a file that is not there. Raises RunDirectoryError naming a damaged line."""
    decode = msgspec.json.Decoder(Entry).decode
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decode(line)
                except msgspec.MsgspecError as broken:
                    raise RunDirectoryError(
                        f"{path}:{number}: not a journal entry: {broken}",
                        fix="restore the file, or start a new run directory",
                    ) from broken
    except FileNotFoundError:
        return
    except OSError as broken:
        raise RunDirectoryError(f"cannot read {path}: {broken.strerror}") from broken


def replay(policy: Policy, entries: Iterable[Entry]) -> State:
    """The state after these entries, from now on under `policy`. Entries are decided under the policy of their time."""
    state: State | None = None
    for entry in entries:
        if state is None:
            state = initial(entry.policy or policy)
        if entry.policy is not None:
            state = replace(state, policy=entry.policy)
        if entry.event is not None:
            state, _ = step(state, entry.event, entry.time)
    return initial(policy) if state is None else replace(state, policy=policy)


def _whole_bytes(path: Path) -> int:
    """Length up to and with the last newline, found from the end."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return 0
