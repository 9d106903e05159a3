"""The worker's line to the supervisor: orders that came in, reports that go out. Standalone there is nobody there.

A Drain never interrupts anything: it is kept here until all ranks have agreed on a boundary. Only Fenced acts at
once, because a fenced worker must not write another byte.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from slurm_elastic.rundir import RunDirectory
from slurm_elastic.signals import Notices
from slurm_elastic.training.environment import Ranks, RunFacts
from slurm_elastic.training.seating import STAGE_STANDBY, STAGE_TRAINING, Seated, Seating
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel, Connected, GaveUp, RefusedBy

log = logging.getLogger(__name__)

FENCED_EXIT = 70


@dataclass(frozen=True, slots=True)
class Order:
    """Stop at the next boundary that all ranks agree on. `deadline`: Unix seconds; None: unknown.

    `may_stay`: train on where the state cannot be saved.
    """

    reason: str
    save: bool = True
    deadline: float | None = None
    why: str = "drained"
    may_stay: bool = False


class Control(Protocol):
    """Safe to use from any thread of the process that made it."""

    @property
    def order(self) -> Order | None:
        """The newest order, None while there is none. Its deadline may change."""
        ...

    def forget(self, order: Order | None) -> None:
        """This order, if it is still the newest, is over."""
        ...

    @property
    def regroup(self) -> int:
        """The newest generation that this worker was told to go into in place; 0: none."""
        ...

    def note_step(self, step: int) -> None: ...

    def send(self, message: m.Message) -> None: ...

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was sent has arrived."""
        ...

    def published(self, step: int, timeout_s: float) -> m.Published | None:
        """The supervisor's answer about the checkpoint of `step`; None when it does not come in time."""
        ...

    def close(self) -> None: ...


class Alone:
    """No supervisor: orders come from `stop`, or from SIGTERM and SIGUSR1 (after `listen`); reports go to the log."""

    def __init__(self) -> None:
        self._order: Order | None = None

    @property
    def order(self) -> Order | None:
        return self._order

    def forget(self, order: Order | None) -> None:
        if self._order is order:
            self._order = None

    def stop(self, reason: str) -> None:
        self._order = self._order or Order(reason, why="stopped")

    def listen(self) -> None:
        """Take the signals, unless the script handles them itself. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.stop(signal.Signals(number).name)

    @property
    def regroup(self) -> int:
        return 0

    def note_step(self, step: int) -> None:
        return

    def send(self, message: m.Message) -> None:
        if isinstance(message, m.Warned):
            log.warning("%s", message.text)

    def flush(self, timeout_s: float) -> bool:
        return True

    def published(self, step: int, timeout_s: float) -> m.Published | None:
        return m.Published(step=step, ok=True)

    def close(self) -> None:
        return


class Supervised:
    """The connection of one worker, kept by a thread. A forked child (a DataLoader's worker) must not use it."""

    def __init__(
        self, run: RunFacts, ranks: Ranks, heartbeat_s: float, give_up_after_s: float, leave: Callable[[int], None]
    ) -> None:
        """`leave` ends the process at once with an exit code (os._exit): it is called when this worker is fenced."""
        self._run = run
        self._leave = leave
        stage = STAGE_STANDBY if run.standby else STAGE_TRAINING
        self.seating = Seating(run.generation, run.node, Seated(run.generation, ranks, stage))
        self._orders: dict[int, Order] = {}  # by generation: one may come ahead of the generation it is for
        self._abandonment: Order | None = None
        self._step = run.resume_step
        self._verdicts: dict[int, m.Published] = {}
        self._changed = threading.Condition()
        self._connected = threading.Event()
        self._pid = os.getpid()
        self._channel = Channel(
            RunDirectory(run.directory),
            self._hello,
            heartbeat_s=heartbeat_s,
            give_up_after_s=give_up_after_s,
            beat=lambda: m.Beat(step=self._step),
        )
        self._closed = False
        self._abandoned = False

    def start(self) -> None:
        """Connect. In the main thread, also hear notices from now on, for the supervisor to ask Slurm about."""
        self._channel.start()
        atexit.register(self._deny_success)  # runs after Session.close, which is registered later
        if threading.current_thread() is threading.main_thread():
            Notices.of_this_process().listen(lambda name: self._channel.inbox.put(m.WorkerNotice(source=name)))
        threading.Thread(target=self._listen, name="slurm-elastic orders", daemon=True).start()

    def address(self, timeout_s: float) -> str:
        """The local IP address that leads to the supervisor; "" when there is no connection in time."""
        self._connected.wait(timeout_s)
        return self._channel.local_address

    @property
    def order(self) -> Order | None:
        return self._abandonment or self._orders.get(self.seating.now.generation)

    @property
    def regroup(self) -> int:
        order = self.seating.order
        return order.generation if order is not None else 0

    def introduce_again(self) -> None:
        """Something of the hello has changed."""
        self._channel.renew()

    def forget(self, order: Order | None) -> None:
        for generation, newest in list(self._orders.items()):
            if newest is order:
                del self._orders[generation]

    def note_step(self, step: int) -> None:
        self._step = step

    def send(self, message: m.Message) -> None:
        if os.getpid() == self._pid:
            self._channel.send(message)

    def flush(self, timeout_s: float) -> bool:
        return self._channel.flush(timeout_s)

    def published(self, step: int, timeout_s: float) -> m.Published | None:
        with self._changed:
            self._changed.wait_for(lambda: step in self._verdicts, timeout_s)
            return self._verdicts.get(step)

    def close(self) -> None:
        if os.getpid() == self._pid and not self._closed:
            self._closed = True
            self._channel.close()

    def _deny_success(self) -> None:
        """Nobody heard why we left: exit code 0 would tell a supervisor that comes back that the run is finished."""
        if self._abandoned and os.getpid() == self._pid:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._leave(FENCED_EXIT)

    # ---- the thread

    def _hello(self, address: str) -> m.WorkerHello:
        seating = self.seating
        now = seating.now
        return m.WorkerHello(
            generation=now.generation,
            node=self._run.node,
            local_rank=seating.seat.local_rank,
            global_rank=now.ranks.global_rank,
            pid=os.getpid(),
            stage=now.stage,
            address=address,
            epoch=self._run.epoch,
            job_id=self._run.job_id,
            launch=seating.seat.launch,
            live=bool(seating.store_port),
            store_port=seating.store_port,
        )

    def _listen(self) -> None:
        while True:
            arrival = self._channel.inbox.get()
            match arrival:
                case Connected():
                    self._connected.set()
                case m.Drain() if arrival.generation >= self.seating.now.generation:
                    order = Order(arrival.reason, arrival.save, arrival.deadline, arrival.why, arrival.may_stay)
                    self._orders[arrival.generation] = order
                case m.Regroup():
                    self.seating.told(arrival)
                case m.Published():
                    with self._changed:
                        self._verdicts[arrival.step] = arrival
                        self._changed.notify_all()
                    if not arrival.ok:
                        log.error("the checkpoint of step %d was not published: %s", arrival.step, arrival.reason)
                case m.Fenced() if arrival.generation >= self._run.generation:
                    log.error("fenced: %s", arrival.reason)
                    self._leave(FENCED_EXIT)
                case m.WorkerNotice():
                    self.send(arrival)
                case RefusedBy(reason):
                    log.error("refused by the supervisor: %s", reason)
                    self._leave(FENCED_EXIT)
                case GaveUp(reason):
                    self._abandoned = True
                    self.seating.abandon()
                    self._abandonment = Order(reason, save=False, why="stopped")  # nobody would publish the checkpoint
                    return
                case _:
                    log.debug("ignored %s", arrival)
