"""Processes as (pid, start time): recorded when they are started, and only those are ever ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.errors import TestbedError

POLL_S = 0.05
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
"""Python ignores some of these for itself; jobs must not inherit that."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process for good: a pid alone may be used again by another one."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Still the same process, and not a zombie that nobody has collected yet."""
        now = _stat(self.pid)
        return now is not None and now.start == self.start and now.state not in "ZX"

    @property
    def stopped(self) -> bool:
        """Asleep by SIGSTOP."""
        now = _stat(self.pid)
        return now is not None and now.start == self.start and now.state == "T"

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    def stop(self, *, patience_s: float) -> None:
        """TERM, then KILL after `patience_s` (0: at once). Returns when it has ended."""
        if patience_s > 0 and self.signal(signal.SIGTERM) and self._ended_within(patience_s):
            return
        # a stopped process takes KILL as well
        if self.signal(signal.SIGKILL) and not self._ended_within(20):
            raise TestbedError(
                f"process {self.pid} does not end", fix="look at it with ps; it is in the kernel's hands"
            )
        self._collect()

    def _ended_within(self, seconds: float) -> bool:
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if self.alive:
                select.select([handle], [], [], seconds)
        finally:
            os.close(handle)
        ended = not self.alive
        if ended:
            self._collect()
        return ended

    def _collect(self) -> None:
        """Take our own child's zombie away; other parents collect theirs."""
        now = _stat(self.pid)
        if now is not None and now.start == self.start:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


@dataclass(frozen=True, slots=True)
class Stat:
    """What we read of /proc/<pid>/stat."""

    name: str
    state: str
    parent: int
    start: int


def _stat(pid: int) -> Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(name=head.partition("(")[2], state=fields[0], parent=int(fields[1]), start=int(fields[19]))


def identify(pid: int) -> Process | None:
    """The process that has this pid now."""
    now = _stat(pid)
    return Process(pid, now.start) if now else None


def record(path: Path, process: Process) -> None:
    path.write_text(f"{process.pid} {process.start}\n")


def recorded(path: Path) -> Process | None:
    """The process a file names, dead or alive; None without a (whole) file."""
    try:
        pid, start = path.read_text().split()
        return Process(int(pid), int(start))
    except (OSError, ValueError):
        return None


def start(
    argv: Sequence[str], *, log: Path, pidfile: Path, environ: Mapping[str, str], stdin: int | None = None
) -> Process:
    """Start a process of its own session that outlives us, output appended to `log`, recorded in `pidfile`.

    Descriptors of ours are closed in it, so that nobody who waits for our output waits for it too.
    """
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    if stdin is None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
    else:
        actions.append((os.POSIX_SPAWN_DUP2, stdin, 0))
    actions.append((os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
    actions += [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()]
    try:
        pid = os.posix_spawnp(
            "env",
            ["env", "-C", "/", *argv],
            environ,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=DEFAULTED,
        )
    except OSError as error:
        raise TestbedError(f"cannot start {argv[0]}: {error}", fix="`slurm-elastic testbed packages`") from error
    process = identify(pid)
    assert process is not None, "our own child stays at least as a zombie"
    record(pidfile, process)
    return process


def _inheritable() -> list[int]:
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names, not paths
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def wait_until(predicate: Callable[[], bool], timeout_s: float, what: str, *, poll_s: float = POLL_S) -> None:
    """Return once `predicate` holds. Raises TestbedError after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > end:
            raise TestbedError(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)


@dataclass(frozen=True, slots=True)
class Running:
    """A process on this machine, as the host sees it."""

    process: Process
    name: str
    parent: int
    arguments: tuple[str, ...]
    environ: Mapping[str, str]


def running() -> Iterator[Running]:
    """All living processes whose environment we may read (it is the one they were started with)."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        now = _stat(int(entry.name))
        if now is None or now.state in "ZX":
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        yield Running(
            process=Process(int(entry.name), now.start),
            name=now.name,
            parent=now.parent,
            arguments=tuple(os.fsdecode(argument) for argument in arguments if argument),
            environ=dict(os.fsdecode(pair).split("=", 1) for pair in variables if b"=" in pair),
        )
