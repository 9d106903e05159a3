"""One connection between two processes of a node: a Unix socket for words, a memory file per direction for the bytes.

The sender owns a memory file of `SLOTS` slots, fills them in turn and says how much is in each; the receiver copies it
out and says that the slot is free. The file has no name anywhere: it is handed over through the socket, and is gone
when both processes are, however they ended. The socket's end is how a peer's death is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from slurm_elastic.errors import PeerLost
from slurm_elastic.migrate.transport_parts import aligned, cuts, place, size_bytes

SLOT_BYTES = 8 << 20  # waking the other process costs as much as copying 1 MiB: 1 MiB slots were three times as slow
SLOTS = 2
RECORD = struct.Struct("<BxxxI")
RING, FILLED, FREED = 1, 2, 3  # with a descriptor | bytes in the next slot | one slot more
_INT = struct.Struct("i")
_ONE_DESCRIPTOR = socket.CMSG_SPACE(_INT.size)
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC  # socket.recv_fds of Python 3.11 forgets its flags
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # nobody can pull the pages away from under the other

Load = list[tuple[int, torch.Tensor]]  # (place in the slot, what goes there)


def loads(parts: Sequence[torch.Tensor], slot_bytes: int) -> Iterator[tuple[Load, int]]:
    """What fills one slot after the other, and how many bytes it is; the same on both ends."""
    load: Load = []
    used = 0
    for part in parts:
        for piece in cuts(part, slot_bytes):
            size = aligned(size_bytes(piece))
            if load and used + size > slot_bytes:
                yield load, used
                load, used = [], 0
            load.append((used, piece))
            used += size
    if load:
        yield load, used


class Link:
    """`pump` moves what can be moved now. `unfinished` counts the messages posted here that are not through."""

    def __init__(self, peer: str, connection: socket.socket, slot_bytes: int) -> None:
        self.peer = peer
        self._slot_bytes = slot_bytes
        self.connection = connection
        self.unfinished = 0
        self.open = True
        self._outgoing: deque[Iterator[tuple[Load, int]]] = deque()
        self._incoming: deque[Iterator[tuple[Load, int]]] = deque()
        self._next_out: tuple[Load, int] | None = None
        self._next_in: tuple[Load, int] | None = None
        self._ring_out: torch.Tensor | None = None
        self._ring_in: torch.Tensor | None = None
        self._free = SLOTS
        self._filled: deque[int] = deque()
        self._slot_out = 0
        self._slot_in = 0

    def send(self, parts: Sequence[torch.Tensor]) -> None:
        self._outgoing.append(loads(parts, self._slot_bytes))
        self.unfinished += 1
        self._advance_out()

    def receive(self, parts: Sequence[torch.Tensor]) -> None:
        self._incoming.append(loads(parts, self._slot_bytes))
        self.unfinished += 1
        self._advance_in()

    def pump(self) -> None:
        """Fill the free slots and empty the filled ones. Raises PeerLost if the peer ended with something open."""
        while self._next_in and self._filled:
            self._empty(*self._next_in)
            self._next_in = None
            self._advance_in()
        while self._next_out and self._free and self.open:
            self._fill(*self._next_out)
            self._next_out = None
            self._advance_out()
        if self.unfinished and not self.open:
            raise self._lost("ended while state moved")

    def hear(self) -> None:
        """Take what the peer said; the socket has something to read."""
        while True:
            try:
                record, attached, _, _ = self.connection.recvmsg(RECORD.size, _ONE_DESCRIPTOR, _FLAGS)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left without reading everything, which is told before what it said last
            except OSError:
                record, attached = b"", []
            if len(record) != RECORD.size:
                self.open = False
                return
            kind, count = RECORD.unpack(record)
            if kind == RING:
                self._ring_in = _map(_INT.unpack(attached[0][2])[0], self.peer, SLOTS * self._slot_bytes)
            elif kind == FILLED:
                self._filled.append(count)
            elif kind == FREED:
                self._free += 1

    def close(self) -> None:
        self.open = False
        self.connection.close()
        self._ring_in = self._ring_out = None
        self._outgoing.clear()
        self._incoming.clear()
        self._next_in = self._next_out = None

    def _advance_out(self) -> None:
        """The next load to send; a message without bytes is through at once."""
        while self._outgoing and not self._next_out:
            self._next_out = next(self._outgoing[0], None)
            if not self._next_out:
                self._outgoing.popleft()
                self.unfinished -= 1

    def _advance_in(self) -> None:
        while self._incoming and not self._next_in:
            self._next_in = next(self._incoming[0], None)
            if not self._next_in:
                self._incoming.popleft()
                self.unfinished -= 1

    def _fill(self, load: Load, used: int) -> None:
        if self._ring_out is None:
            self._ring_out = self._make_ring()
        start = self._slot_out * self._slot_bytes
        for offset, piece in load:
            place(self._ring_out, start + offset, piece).copy_(piece)
        self._slot_out = (self._slot_out + 1) % SLOTS
        self._free -= 1
        self._say(FILLED, used)

    def _empty(self, load: Load, used: int) -> None:
        filled = self._filled.popleft()
        if filled != used or self._ring_in is None:
            raise self._lost(f"sent {filled} bytes where {used} were expected: the two do not follow the same plan")
        start = self._slot_in * self._slot_bytes
        for offset, piece in load:
            piece.copy_(place(self._ring_in, start + offset, piece))
        self._slot_in = (self._slot_in + 1) % SLOTS
        self._say(FREED, 0)

    def _make_ring(self) -> torch.Tensor:
        descriptor = os.memfd_create("slurm-elastic", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, SLOTS * self._slot_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [RECORD.pack(RING, 0)], [descriptor])
        return _map(descriptor, self.peer, SLOTS * self._slot_bytes)

    def _say(self, kind: int, count: int) -> None:
        with contextlib.suppress(OSError):  # it is gone; what it said before is still to be heard, then its end
            self.connection.send(RECORD.pack(kind, count))

    def _lost(self, how: str) -> PeerLost:
        return PeerLost(f"device {self.peer} {how}", peer=self.peer)


def _map(descriptor: int, peer: str, size: int) -> torch.Tensor:
    """The memory file as bytes; takes the descriptor."""
    try:
        if os.fstat(descriptor).st_size != size:
            raise PeerLost(f"device {peer} offers a shared memory of another size: another version?", peer=peer)
        return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)
