"""Runs an action in a forked child that is killed (SIGKILL) just before its k-th change of the file system.

Changes are counted by an audit hook (open for writing, rename, remove, mkdir, rmdir) and around os.fsync, so the
code under test needs no hook of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def killed_at_every_change(
    prepare: Callable[[], object], action: Callable[[], object], limit: int = 200
) -> Iterator[int]:
    """Yields k after each child that died before its k-th change; ends with the first child that got through.

    `prepare` runs in the parent before each child.
    """
    for k in range(1, limit):
        prepare()
        pid = os.fork()
        if pid == 0:
            _run(action, k)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, f"the child failed by itself (kill point {k})"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield k
    raise AssertionError(f"more than {limit} changes")


def _run(action: Callable[[], object], k: int) -> None:
    left = k

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and _writes(args)):
            count()

    fsync = os.fsync

    def counted_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    os.fsync = counted_fsync  # a patch, in a child that ends here: fsync raises no audit event
    sys.addaudithook(hook)
    try:
        action()
    except BaseException:  # noqa: BLE001 - a forked child must not run the rest of pytest
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _writes(args: tuple[Any, ...]) -> bool:
    _, mode, flags = args
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR))
