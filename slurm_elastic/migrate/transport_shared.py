"""Movement between processes of one node through shared memory: no copy goes through the network stack.

Order of calls: make one (it listens from then on), tell its `address` to the others by whatever channel there is, then
`introduce` it to those for which `reachable` says yes; from then on it is a Transport. Addresses are abstract Unix
sockets, so nothing is left in any directory; only processes of this user that know the address's token are let in.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.errors import MigrationCancelled, MigrationError, PeerLost
from slurm_elastic.migrate.transport import Message, Traffic
from slurm_elastic.migrate.transport_parts import total_bytes
from slurm_elastic.migrate.transport_shared_link import SLOT_BYTES, Link

HELLO_BYTES = 1024
_CREDENTIALS = struct.Struct("3i")


class SharedMemoryTransport:
    """`slot_bytes`: of the two buffers a direction, between two processes; the same in all of them."""

    def __init__(self, me: str, *, slot_bytes: int = SLOT_BYTES) -> None:
        self.traffic = Traffic()
        self._slot_bytes = slot_bytes
        self._me = me
        self._token = secrets.token_hex(16)
        name = f"slurm-elastic-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{name}")
        self._listener.listen(4096)
        self.address = f"{_place()} {name} {self._token}"
        self._links: dict[str, Link] = {}
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._aborted = False

    @staticmethod
    def reachable(address: str) -> bool:
        """Whether the process with this address can be met here: same boot of the same node, network and user."""
        return address.partition(" ")[0] == _place()

    def introduce(self, addresses: Mapping[str, str], timeout_s: float) -> None:
        """Connect with all `addresses` (device: address); they do the same. Each pair's first name calls the other."""
        deadline = time.monotonic() + timeout_s
        expected = {device: address.split(" ") for device, address in addresses.items() if device != self._me}
        for device, (_, name, token) in sorted(expected.items()):
            if self._me < device:
                self._call(device, name, token, deadline)
        while missing := sorted(expected.keys() - self._links.keys()):
            self._answer(expected, missing[0], deadline)
        self._listener.close()
        for link in self._links.values():
            link.connection.setblocking(True)
            self._selector.register(link.connection, selectors.EVENT_READ, link)

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Posted:
        if self._aborted:
            raise MigrationCancelled("the movement of state was called off")
        for message in receives:
            self._link(message.peer).receive(message.parts)
            self.traffic.received[message.peer] += total_bytes(message.parts)
        for message in sends:
            self._link(message.peer).send(message.parts)
            self.traffic.sent[message.peer] += total_bytes(message.parts)
        for peer in {message.peer for message in (*sends, *receives)}:
            self._links[peer].pump()
        return _Posted(self)

    def drive(self, timeout_s: float) -> None:
        """Move everything that was posted."""
        deadline = time.monotonic() + timeout_s
        busy = [link for link in self._links.values() if link.unfinished]
        while busy:
            if self._aborted:
                raise MigrationCancelled("the movement of state was called off")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                peer = busy[0].peer
                raise PeerLost(f"device {peer} did not answer within {timeout_s:g} s while state moved", peer=peer)
            for key, _ in self._selector.select(left_s):
                if isinstance(key.data, Link):
                    self._hear(key.data)
            busy = [link for link in busy if link.unfinished]

    def _hear(self, link: Link) -> None:
        link.hear()
        if not link.open:
            self._selector.unregister(link.connection)
        try:
            link.pump()
        except PeerLost:
            if self._aborted:  # by another thread: it is this end that hung up
                raise MigrationCancelled("the movement of state was called off") from None
            raise

    def abort(self) -> None:
        self._aborted = True
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0", socket.MSG_DONTWAIT)
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                link.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._selector.close()
        for one in (self._listener, self._wake_in, self._wake_out):
            one.close()

    def _link(self, peer: str) -> Link:
        if peer not in self._links:
            raise MigrationError(f"device {peer} was not introduced to {self._me}'s shared memory", peer=peer)
        return self._links[peer]

    def _call(self, device: str, name: str, token: str, deadline: float) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection.connect(f"\0{name}")
            _check_user(connection, device)
            connection.send(f"{token} {self._me}".encode())
        except OSError as broken:
            connection.close()
            raise PeerLost(f"device {device} cannot be reached on this node: {broken}", peer=device) from broken
        self._links[device] = Link(device, connection, self._slot_bytes)

    def _answer(self, expected: Mapping[str, Sequence[str]], missing: str, deadline: float) -> None:
        """Let in one caller that knows the token and is expected; anybody else is hung up on."""
        self._listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise PeerLost(f"device {missing} did not connect on this node", peer=missing) from None
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        device = ""
        with contextlib.suppress(OSError, UnicodeDecodeError, MigrationError):
            _check_user(connection, "a caller")
            token, _, device = connection.recv(HELLO_BYTES).decode().partition(" ")
            if not hmac.compare_digest(token, self._token):
                device = ""
        if device in expected and device not in self._links:
            self._links[device] = Link(device, connection, self._slot_bytes)
        else:
            connection.close()


class _Posted:
    def __init__(self, owner: SharedMemoryTransport) -> None:
        self._owner = owner

    def wait(self, timeout_s: float) -> None:
        self._owner.drive(timeout_s)


def _place() -> str:
    """Equal for processes that can meet: the boot of the machine, its network namespace (of the sockets), the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}/{os.getuid()}"


def _check_user(connection: socket.socket, device: str) -> None:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    if user != os.getuid():
        raise PeerLost(f"{device} belongs to user {user}, not to this one", peer=device)
