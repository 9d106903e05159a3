"""One connection to the supervisor, from connecting to its end. Used by one thread only."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from slurm_elastic.errors import PeerClosed, WireError
from slurm_elastic.wire import auth
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import Decoders, Opener, Sealer, encode
from slurm_elastic.wire.outbox import Outbox

CONNECT_S = 5.0  # for connecting and introducing ourselves
_CHUNK_BYTES = 256 << 10
_SILENT_BEATS = 3  # missed echoes before the supervisor counts as lost
_SILENT_EXTRA_S = 2.0


class Session:
    """A connected, authenticated and welcomed (or refused: see `verdict`) socket."""

    def __init__(
        self,
        host: str,
        port: int,
        token: bytes,
        hello: Callable[[str], m.AgentHello | m.WorkerHello],
        heartbeat_s: float,
    ) -> None:
        """Raises OSError or WireError when there is no supervisor of ours. Takes CONNECT_S at most."""
        self._decoders = Decoders()
        self._socket = socket.create_connection((host, port), timeout=CONNECT_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.local_address = str(self._socket.getsockname()[0])
            self._out = bytearray()
            self._early: deque[m.AnyMessage] = deque()
            self._introduce(token, hello)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._heartbeat_s = heartbeat_s
        self._marks: deque[int] = deque()
        self._heard = self._turned = time.monotonic()
        self._beat_due = self._heard + heartbeat_s

    @property
    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def turn(self, outbox: Outbox, wake: socket.socket, beat: Callable[[], m.Beat]) -> Iterator[m.AnyMessage]:
        """Send what waits, wait for something to happen (a heartbeat at most), give what arrived.

        When someone waits for confirmation, a beat follows as soon as all that waits is sent.
        Raises OSError or WireError when the connection is over.
        """
        self._check_alive()
        while self._early:
            yield self._early.popleft()
        self._fill(outbox)
        now = time.monotonic()
        hurry = outbox.is_awaited and not self._marks and not outbox.has_pending
        if hurry or now >= self._beat_due:
            self._seal_beat(outbox, beat())
        self._send()
        with selectors.DefaultSelector() as selector:
            writing = selectors.EVENT_WRITE if self._out else 0
            selector.register(self._socket, selectors.EVENT_READ | writing)
            selector.register(wake, selectors.EVENT_READ)
            ready = selector.select(max(0.0, min(self._beat_due - now, self._silence_s / 2)))
        self._check_awake()
        for key, events in ready:
            if key.fileobj is wake:
                wake.recv(4096)
            elif events & selectors.EVENT_READ:
                yield from self._receive(outbox)

    # ---- inside

    @property
    def _silence_s(self) -> float:
        return _SILENT_BEATS * self._heartbeat_s + _SILENT_EXTRA_S

    def _check_alive(self) -> None:
        self._check_awake()
        silent_s = time.monotonic() - self._heard
        if silent_s > self._silence_s:
            raise PeerClosed(f"the supervisor has been silent for {silent_s:.1f} s")

    def _check_awake(self) -> None:
        """What a stopped process finds in its socket when it goes on was meant for a world that is gone."""
        now = time.monotonic()
        gap_s = now - self._turned
        if gap_s > self._heartbeat_s + self._silence_s:
            raise PeerClosed(f"this process did not run for {gap_s:.1f} s (suspended or frozen)")
        self._turned = now

    def _introduce(self, token: bytes, hello: Callable[[str], m.AgentHello | m.WorkerHello]) -> None:
        deadline = time.monotonic() + CONNECT_S
        nonce = auth.new_nonce()
        self._socket.sendall(auth.greet(nonce))
        early = bytearray()
        while len(early) < auth.CHALLENGE_BYTES:
            early += self._early_bytes(auth.CHALLENGE_BYTES - len(early), deadline)
        proof, keys = auth.answer(token, nonce, bytes(early))
        self._sealer, self._opener = Sealer(keys.to_server), Opener(keys.to_client)
        self._socket.sendall(proof + self._sealer.seal(encode(hello(self.local_address))))
        while not self._early:
            for body in self._opener.feed(self._early_bytes(_CHUNK_BYTES, deadline)):
                self._early.append(self._decoders.from_supervisor(body))
        verdict = self._early.popleft()
        if not isinstance(verdict, m.Welcome | m.Refused):
            raise WireError(f"the supervisor answered a hello by {type(verdict).__name__}")
        self.verdict = verdict

    def _early_bytes(self, count: int, deadline: float) -> bytes:
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        data = self._socket.recv(count)
        if not data:
            raise PeerClosed("the supervisor closed the connection before it welcomed us (another token?)")
        return data

    def _fill(self, outbox: Outbox) -> None:
        while len(self._out) < _CHUNK_BYTES and (body := outbox.take()) is not None:
            self._out += self._sealer.seal(body)

    def _seal_beat(self, outbox: Outbox, beat: m.Beat) -> None:
        self._out += self._sealer.seal(encode(beat))
        self._marks.append(outbox.mark())
        self._beat_due = time.monotonic() + self._heartbeat_s

    def _send(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except BlockingIOError:
                return
            del self._out[:sent]

    def _receive(self, outbox: Outbox) -> Iterator[m.AnyMessage]:
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise PeerClosed("the supervisor closed the connection")
        self._heard = time.monotonic()
        for body in self._opener.feed(data):
            message = self._decoders.from_supervisor(body)
            if isinstance(message, m.Beat):
                if message.confirms and self._marks:
                    outbox.confirm(self._marks.popleft())
            else:
                yield message
