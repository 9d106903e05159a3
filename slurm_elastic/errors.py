"""Every error we raise on purpose: what broke, with the values, and what the reader can do about it.

SlurmElasticError                 exit code 1
├── UserMistake                   2   bad flag, file or value; nothing was started
│   └── ConfigError               2   every fault of a settings file, each with key and file:line
├── RunDirectoryError             2   missing, foreign, or writable by others
├── Superseded                    4   a newer supervisor has taken this run over: stop, write nothing
├── SlurmError                    3
│   ├── SlurmCommandError         3   Slurm refused, for good or for now (`retryable`)
│   └── SlurmUnknown              3   Slurm did not answer: unknown is not "gone"
├── WireError                     1   a peer broke the protocol
│   ├── AuthenticationError       1   it does not know the run's token
│   └── PeerClosed                1   the connection ended
├── CheckpointError               1   incomplete, corrupt, or not ours
│   └── CheckpointVersionError    1   written by another release: neither loaded nor called corrupt
├── RegroupError                  1   a worker cannot get into the next generation in place
├── MigrationError                1   state could not be moved between workers
│   ├── PeerLost                  1   a device went away, or did not answer, while state moved
│   └── MigrationCancelled        1   a newer order has come
├── RequestNotTaken               1   a running supervisor did not do what the command line asked, in time
├── TestbedError                  1   the cluster on this machine could not be made to do it
└── MissingDependency             1   an optional package or program is needed for this
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class SlurmElasticError(Exception):
    """Anything we raise on purpose: what broke, and what the reader can do about it."""

    exit_code = 1

    def __init__(self, problem: str, *, fix: str = "") -> None:
        super().__init__(f"{problem}\n  fix: {fix}" if fix else problem)
        self.problem = problem
        self.fix = fix


class UserMistake(SlurmElasticError):
    """A flag, a file or a value is wrong. Nothing was started."""

    exit_code = 2


class ConfigError(UserMistake):
    """The settings file is wrong. Lists every fault, not only the first.

    `faults` holds (line from 1 or None, dotted key, reason).
    """

    def __init__(self, path: Path | str, faults: Sequence[tuple[int | None, str, str]], *, fix: str = "") -> None:
        self.path = Path(path)
        self.faults = tuple(faults)
        rows = [f"{path}{f':{line}' if line else ''}: {f'{key} {why}'.strip()}" for line, key, why in self.faults]
        fix = fix or f"edit the file; `slurm-elastic check {path}` tests it without a job"
        super().__init__("\n".join(rows), fix=fix)


class RunDirectoryError(SlurmElasticError):
    """The run directory is missing, not one of ours, or not safe to use."""

    exit_code = 2


class Superseded(SlurmElasticError):
    """A newer supervisor has taken this run over: this one stops at once and writes nothing more."""

    exit_code = 4


class SlurmError(SlurmElasticError):
    """Something about Slurm itself."""

    exit_code = 3


class SlurmCommandError(SlurmError):
    """Slurm refused. `retryable` says whether the same call may succeed later."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str, *, retryable: bool = False) -> None:
        self.argv = tuple(argv)
        self.code = code
        self.stderr = stderr
        self.retryable = retryable
        said = stderr.strip() or "nothing on stderr"
        super().__init__(
            f"`{' '.join(self.argv)}` exited {code}: {said}",
            fix="wait and try again" if retryable else "check the values and your rights",
        )


class SlurmUnknown(SlurmError):
    """Slurm gave no usable answer (controller away, time-out): nothing is known, nothing is decided."""


class WireError(SlurmElasticError):
    """A peer broke the protocol: malformed, too long, out of order or of the wrong kind."""


class AuthenticationError(WireError):
    """The peer does not know the run's token, or a message was tampered with."""


class PeerClosed(WireError):
    """The connection ended."""


class CheckpointError(SlurmElasticError):
    """A checkpoint is incomplete, corrupt, or does not fit what is being loaded."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint of another release. It may be fine, so it is never marked bad and never skipped."""


class RegroupError(SlurmElasticError):
    """This worker cannot get into the next generation in place: a peer is missing, or state is gone everywhere."""


class MigrationError(SlurmElasticError):
    """State could not be moved. `peer`: the device it failed with, `tensors`: what was on the way, as far as known."""

    def __init__(self, problem: str, *, peer: str = "", tensors: Sequence[str] = (), fix: str = "") -> None:
        super().__init__(problem, fix=fix)
        self.peer = peer
        self.tensors = tuple(tensors)


class PeerLost(MigrationError):
    """A device's connection ended, or it did not answer in time, while state moved from or to it."""


class MigrationCancelled(MigrationError):
    """Somebody in this process called the movement off: a newer order has come."""


class StateLost(RegroupError):
    """Some of the state is nowhere any more, or at no common step: only a checkpoint can help."""


class RequestNotTaken(SlurmElasticError):
    """The supervisor did not take a request, or the run has not ended, in time. A request not taken was withdrawn."""


class TestbedError(SlurmElasticError):
    """The cluster on this machine could not be brought into the asked state."""

    __test__ = False  # not a test class, whatever pytest thinks of the name


class MissingDependency(SlurmElasticError):
    """An optional package or program is needed for this and is not there."""
