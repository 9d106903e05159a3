"""The worker's and the agent's end of the wire: a thread that keeps a connection to whoever is the supervisor now."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from slurm_elastic.errors import PeerClosed, RunDirectoryError, WireError
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import check_size, encode
from slurm_elastic.wire.outbox import Outbox
from slurm_elastic.wire.session import CONNECT_S, Session

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """endpoint.json: where the supervisor of the highest epoch listens."""

    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Connected:
    welcome: m.Welcome


@dataclass(frozen=True, slots=True)
class Disconnected:
    reason: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """There was no supervisor for too long. The channel has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusedBy:
    """The supervisor does not want us. The channel has ended."""

    reason: str


Arrival = m.AnyMessage | Connected | Disconnected | GaveUp | RefusedBy


class Channel:
    """`start()` once, then `send` from any thread and read `inbox`; `close()` at the end.

    `hello` is called for every (re)connection with the connection's local IP address. A kept message that was not
    confirmed before a connection was lost is sent again on the next one: receivers must tolerate repeats.
    Orders of an epoch older than the newest one seen never reach the inbox.
    """

    def __init__(
        self,
        run_dir: RunDirectory,
        hello: Callable[[str], m.AgentHello | m.WorkerHello],
        *,
        heartbeat_s: float,
        give_up_after_s: float,
        beat: Callable[[], m.Beat] | None = None,
        inbox: queue.SimpleQueue[Any] | None = None,
    ) -> None:
        """`inbox`: a queue of the caller's, for a loop that waits for other things too."""
        self.inbox: queue.SimpleQueue[Arrival] = queue.SimpleQueue() if inbox is None else inbox
        self.local_address = ""  # of the present or last connection
        self._run_dir = run_dir
        self._hello = hello
        self._heartbeat_s = heartbeat_s
        self._give_up_after_s = give_up_after_s
        self._beat = beat or m.Beat
        self._outbox = Outbox()
        self._epoch = 0
        self._session: Session | None = None
        self._closed = threading.Event()
        self._stale = threading.Event()
        self._has_ended = False
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="slurm-elastic channel", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()
        myself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_in_child(myself()))

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    def send(self, message: m.Message, keep: bool = True) -> None:
        """Queue a message. `keep=False`: drop it when there is no connection. Ignored when the channel has ended.

        Raises WireError when the message is too long, or 100,000 wait already.
        """
        if self._has_ended or not (keep or self.is_connected):
            return
        body = encode(message)
        check_size(body)
        self._outbox.put(body, keep)
        self._wake_up()

    def renew(self) -> None:
        """End the connection and introduce ourselves anew, because the hello has changed. Nothing is lost."""
        self._stale.set()
        self._wake_up()

    def flush(self, timeout_s: float) -> bool:
        """Whether the supervisor has confirmed, within `timeout_s`, everything that was sent before."""
        return self._outbox.wait_confirmed(timeout_s, self._wake_up)

    def close(self) -> None:
        """End the connection and the thread. What was not flushed may be lost. Safe to repeat."""
        self._closed.set()
        self._wake_up()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CONNECT_S + 1)
        self._wake.close()
        self._waker.close()

    # ---- the thread

    def _run(self) -> None:
        pause_s, waited_s = _FIRST_PAUSE_S, 0.0
        try:
            while not self._closed.is_set():
                began = time.monotonic()
                try:
                    session = self._connect()
                except (OSError, WireError, RunDirectoryError, msgspec.MsgspecError) as failed:
                    if waited_s >= self._give_up_after_s:
                        self.inbox.put(GaveUp(f"no supervisor for {waited_s:.0f} s: {failed}"))
                        return
                    self._closed.wait(pause_s)
                    # A process that was stopped meanwhile did not wait: it tries again before it gives up.
                    waited_s += min(time.monotonic() - began, 2 * CONNECT_S + pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                pause_s, waited_s = _FIRST_PAUSE_S, 0.0
                if session is None or not self._serve(session):
                    return
        finally:
            self._has_ended = True

    def _connect(self) -> Session | None:
        """A welcomed session; None when we were refused."""
        self._stale.clear()
        endpoint = msgspec.json.decode(self._run_dir.endpoint.read_bytes(), type=Endpoint)
        if endpoint.epoch < self._epoch:
            raise WireError(f"endpoint.json is of epoch {endpoint.epoch}; {self._epoch} was seen")
        session = Session(endpoint.host, endpoint.port, self._run_dir.read_token(), self._hello, self._heartbeat_s)
        verdict = session.verdict
        if isinstance(verdict, m.Refused):
            session.close()
            self.inbox.put(RefusedBy(verdict.reason))
            return None
        if verdict.epoch < self._epoch:
            session.close()
            raise WireError(f"a supervisor of epoch {verdict.epoch} answered; {self._epoch} was seen")
        self._epoch = verdict.epoch
        self.local_address = session.local_address
        self._session = session
        self.inbox.put(Connected(verdict))
        return session

    def _serve(self, session: Session) -> bool:
        """Until the connection is lost (True) or the channel is closed (False)."""
        try:
            while not self._closed.is_set():
                for message in session.turn(self._outbox, self._wake, self._beat):
                    self._arrived(message)
                if self._stale.is_set():
                    raise PeerClosed("introducing ourselves again")
            return False
        except (OSError, WireError) as lost:
            self._session = None
            self._outbox.rewind()
            self.inbox.put(Disconnected(str(lost)))
            return True
        finally:
            self._session = None
            session.close()

    def _arrived(self, message: m.AnyMessage) -> None:
        epoch = getattr(message, "epoch", self._epoch)
        if epoch < self._epoch:
            log.warning("ignored %s of epoch %d: %d rules now", type(message).__name__, epoch, self._epoch)
            return
        self.inbox.put(message)

    def _wake_up(self) -> None:
        # A full pipe wakes just as well; a closed channel needs no waking.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def forget(self) -> None:
        """In a forked child: give up our copy of the sockets, so that the parent's death is seen by its peer."""
        session = self._session
        if session is not None:
            session.close()
        self._has_ended = True


def _forget_in_child(channel: Channel | None) -> None:
    if channel is not None:
        channel.forget()
