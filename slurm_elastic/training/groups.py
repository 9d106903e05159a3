"""Process groups that come and go within one process, and a way out for a thread that is stuck in one of them."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

log = logging.getLogger(__name__)


class Sockets:
    """The connections of a generation's groups, noted while the groups are made, to be cut when a peer is lost.

    gloo's abort does not free a thread that waits for a silent peer; an end of its connections does, at once. What is
    noted are all connections that this process opened meanwhile, but for those to its own store at `store_port`.
    """

    def __init__(self) -> None:
        self.store_port = 0
        self._held: list[socket.socket] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        before = _inodes()
        yield
        for inode, descriptor in _inodes().items():
            if inode not in before and (ours := self._connection(descriptor)) is not None:
                self._held.append(ours)

    def cut(self) -> None:
        """From any thread: whoever waits for a peer on one of them gets an error."""
        for held in self._held:
            with contextlib.suppress(OSError):  # closed by the other side already
                held.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """The groups are gone."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _connection(self, descriptor: int) -> socket.socket | None:
        """A duplicate of an established connection; None for a listener, our store's side, or one that is gone."""
        try:
            duplicate = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # another thread has closed it meanwhile
            return None
        if _is_connected(duplicate) and _port_of(duplicate) != self.store_port:
            return duplicate
        duplicate.close()
        return None


def _is_connected(one: socket.socket) -> bool:
    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    try:
        one.getpeername()
    except OSError:  # not yet, or no more
        return False
    return True


def _port_of(one: socket.socket) -> int:
    """The local port; 0 for a Unix socket, which has none."""
    return int(one.getsockname()[1]) if one.family in (socket.AF_INET, socket.AF_INET6) else 0


def _inodes() -> dict[str, int]:
    """Sockets of this process: inode to descriptor."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:"):
                found[target] = int(descriptor.name)
    return found


def end_groups() -> None:
    """All process groups of this process, whatever state they are in."""
    if not dist.is_initialized():
        return
    try:
        dist.destroy_process_group()
    except RuntimeError as broken:  # of a group whose peers are gone
        log.warning("the old process group did not end cleanly: %s", broken)
