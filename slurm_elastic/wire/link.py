"""One connection as the supervisor sees it: an asyncio protocol that authenticates, decodes and queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from slurm_elastic.errors import AuthenticationError, WireError
from slurm_elastic.wire import auth
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import MAX_MESSAGE_BYTES, Decoders, Opener, Sealer, encode
from slurm_elastic.wire.receipts import Receipts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may take of us. Seconds and bytes."""

    message_bytes: int = MAX_MESSAGE_BYTES
    stranger_s: float = 5.0  # from connecting until its hello is read
    strangers: int = 4096  # connections that are not yet authenticated
    connections: int = 20_000
    backlog_bytes: int = 8 << 20  # queued for one peer that does not read
    backlog_s: float = 20.0  # how long a peer may leave a full buffer unread
    closing_s: float = 2.0  # how long a closed connection may take to send what is queued


class Handler(Protocol):
    """What the supervisor does with its peers. Called in the event loop: must never block.

    Order for one link: `connected` once; if it answers Welcome, any number of `received`, then `closed` once.
    A peer that reconnects may be `connected` again before its old link is `closed`.
    """

    def connected(self, link: Link, hello: m.AgentHello | m.WorkerHello) -> m.Welcome | m.Refused: ...

    def received(self, link: Link, message: m.AnyMessage) -> None:
        """A message of the kinds this peer may send; after a reconnect the last ones may come a second time."""
        ...

    def closed(self, link: Link, reason: str) -> None: ...


class Registry(Protocol):
    """What a link needs of its server."""

    token: bytes
    handler: Handler
    limits: Limits
    decoders: Decoders

    def opened(self, link: Link) -> str:
        """A new connection; an answer other than "" says why it cannot be taken."""
        ...

    def welcomed(self, link: Link) -> None: ...

    def refused(self, link: Link, reason: str) -> None: ...

    def gone(self, link: Link) -> None:
        """It is no peer any more; its socket may still be sending."""
        ...

    def lost(self, link: Link) -> None:
        """Its socket is closed."""
        ...


class Stage(Enum):
    GREETING = "greeting"
    PROOF = "proof"
    HELLO = "hello"
    OPEN = "open"
    CLOSED = "closed"


class Link(asyncio.Protocol):
    """`hello` is who it is; `heard` the monotonic time of its last message; `peer` its IP address."""

    hello: m.AgentHello | m.WorkerHello  # set before Handler.connected is called

    def __init__(self, number: int, registry: Registry) -> None:
        self.id = number
        self.peer = ""
        self.heard = 0.0
        self._registry = registry
        self._stage = Stage.GREETING
        self._loop = asyncio.get_running_loop()
        self._early = bytearray()
        self._held: list[m.Message] = []
        self._receipts = Receipts()
        self._decode: Callable[[bytes], m.AnyMessage] = registry.decoders.from_worker
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Link {self.id} {self.peer} {self._stage.value}>"

    def send(self, message: m.Message) -> None:
        """Queue a message; nothing happens when the link is closed. A peer that does not read is dropped."""
        if self._stage is Stage.HELLO:
            self._held.append(message)  # asked for by Handler.connected: goes out after the Welcome
        if self._stage is not Stage.OPEN:
            return
        self._transport.write(self._sealer.seal(encode(message)))
        if self._transport.get_write_buffer_size() > self._registry.limits.backlog_bytes:
            self._end("it does not read what we send", at_once=True)

    def hold_receipt(self) -> Callable[[], None]:
        """Within `Handler.received`: this message is lost if we die now. To be called when it is not any more."""
        place = self._receipts.hold()

        def safe() -> None:
            for _ in range(self._receipts.safe(place)):
                self.send(m.Beat())

        return safe

    def close(self, reason: str) -> None:
        """Send what is queued, then close. `Handler.closed` is called before this returns. Safe to repeat."""
        self._end(reason, at_once=False)

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peername = transport.get_extra_info("peername")
        self.peer = str(peername[0]) if peername else "?"
        self.heard = self._loop.time()
        if problem := self._registry.opened(self):
            self._refuse(problem)
            return
        limits = self._registry.limits
        transport.set_write_buffer_limits(high=limits.backlog_bytes // 8)
        self._timer = self._loop.call_later(
            limits.stranger_s, self._refuse, f"it did not introduce itself within {limits.stranger_s:g} s"
        )

    def data_received(self, data: bytes) -> None:
        try:
            if self._stage in (Stage.GREETING, Stage.PROOF):
                self._meet(data)
            elif self._stage is not Stage.CLOSED:
                self._open_frames(data)
        except WireError as broken:
            self._refuse(broken.problem)

    def pause_writing(self) -> None:
        if self._stage is not Stage.OPEN:
            return
        limits = self._registry.limits
        self._timer = self._loop.call_later(
            limits.backlog_s, self._end, f"it did not read for {limits.backlog_s:g} s", True
        )

    def resume_writing(self) -> None:
        if self._stage is Stage.OPEN:
            self._stop_timer()

    def connection_lost(self, broken: Exception | None) -> None:
        if self._stage in (Stage.GREETING, Stage.PROOF, Stage.HELLO):
            self._refuse("it left before it introduced itself")
        self._end(f"connection lost: {broken}" if broken else "the peer closed the connection", at_once=True)
        self._stop_timer()  # of closing: what was queued is sent
        self._registry.lost(self)

    # ---- stages

    def _meet(self, data: bytes) -> None:
        """Each stage takes or refuses as soon as its few bytes are there: a stranger's data never piles up.

        What comes behind a right proof are frames: a peer sends its hello with it, and that of a large job is long.
        """
        self._early += data
        if self._stage is Stage.GREETING:
            if not auth.looks_like_greeting(bytes(self._early)):
                raise AuthenticationError("this is not a slurm-elastic peer of our version")
            if len(self._early) < auth.GREETING_BYTES:
                return
            self._client_nonce = auth.read_greeting(self._take(auth.GREETING_BYTES))
            self._server_nonce = auth.new_nonce()
            self._transport.write(auth.challenge(self._registry.token, self._client_nonce, self._server_nonce))
            self._stage = Stage.PROOF
        if len(self._early) < auth.PROOF_BYTES:
            return
        proof = self._take(auth.PROOF_BYTES)
        keys = auth.accept(self._registry.token, self._client_nonce, self._server_nonce, proof)
        self._sealer = Sealer(keys.to_client)
        self._opener = Opener(keys.to_server, self._registry.limits.message_bytes)
        self._stage = Stage.HELLO
        rest = self._take(len(self._early))
        self._open_frames(rest)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._early[:count])
        del self._early[:count]
        return taken

    def _open_frames(self, data: bytes) -> None:
        for body in self._opener.feed(data):
            self.heard = self._loop.time()
            if self._stage is Stage.HELLO:
                self._introduce(self._registry.decoders.hello(body))
            elif self._stage is Stage.OPEN:
                self._hear(self._decode(body))
            else:
                return

    def _introduce(self, hello: m.AgentHello | m.WorkerHello) -> None:
        self.hello = hello
        if isinstance(hello, m.AgentHello):
            self._decode = self._registry.decoders.from_agent
        self._stop_timer()
        verdict = self._registry.handler.connected(self, hello)
        if self._stage is not Stage.HELLO:
            return
        self._transport.write(self._sealer.seal(encode(verdict)))
        if isinstance(verdict, m.Refused):
            log.info("refused %s at %s: %s", type(hello).__name__, self.peer, verdict.reason)
            self._stage = Stage.CLOSED
            self._registry.gone(self)
            self._hang_up(at_once=False)
            return
        self._stage = Stage.OPEN
        self._registry.welcomed(self)
        while self._held:
            self.send(self._held.pop(0))

    def _hear(self, message: m.AnyMessage) -> None:
        self._registry.handler.received(self, message)
        if isinstance(message, m.Beat):
            # The echo says two things: we live, and all that came before this beat is safe with us.
            self.send(m.Beat(confirms=self._receipts.beat()))

    # ---- ends

    def _refuse(self, reason: str) -> None:
        """A peer broke the protocol, or never was one of ours."""
        if self._stage is Stage.CLOSED:
            return
        self._registry.refused(self, reason)
        self._end(reason, at_once=True)

    def _end(self, reason: str, at_once: bool) -> None:
        if self._stage is Stage.CLOSED:
            return
        was_open = self._stage is Stage.OPEN
        self._stage = Stage.CLOSED
        self._registry.gone(self)
        self._hang_up(at_once)
        if was_open:
            self._registry.handler.closed(self, reason)

    def _hang_up(self, at_once: bool) -> None:
        self._stop_timer()
        if at_once:
            self._transport.abort()
            return
        self._transport.close()
        self._timer = self._loop.call_later(self._registry.limits.closing_s, self._transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
