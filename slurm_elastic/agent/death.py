"""Ask the kernel to end this process when its parent ends, so that nothing of ours is left behind on a node."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """From now on the death of the parent sends us `sent`. A parent that died already ends us at once.

    Raises OSError where the kernel refuses. The setting survives exec, not fork.
    """
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, int(sent))
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), sent)


def adopt_orphans() -> None:
    """Descendants that daemonise themselves become our children instead of the node's.

    So whoever kills our process tree finds them, also Slurm without cgroups. Survives exec, not fork. Raises OSError.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
