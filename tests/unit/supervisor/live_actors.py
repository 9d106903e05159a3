"""Scripted workers of a level-2 script: they train in step with each other and change their generation in place."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel
from tests.unit.supervisor.actors import HEARTBEAT_S, SAMPLES, STEP_S, Script, Worker, digest_of

MOVED_BYTES = 100


class Broken(Exception):
    """A collective failed, or whoever waits in it was called away."""


@dataclass
class Group:
    """What a process group is to us: all arrive at the same point, or nobody gets through."""

    size: int
    broken: threading.Event = field(default_factory=threading.Event)
    said: dict[object, dict[m.Seat, int]] = field(default_factory=dict)


@dataclass
class Net:
    """All groups of a run by name. `hold` keeps everybody out of new ones."""

    groups: dict[object, Group] = field(default_factory=dict)
    hold: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def group(self, name: object, size: int) -> Group:
        with self.lock:
            return self.groups.setdefault(name, Group(size))


class LiveWorker(Worker):
    """A worker that keeps its process for as long as it has a seat."""

    net: Net  # set by `live_script`
    mute: threading.Event  # it tells nobody of its steps
    crashed = False

    def _life(self) -> int:
        self.launch = self.generation
        self.seat = m.Seat(launch=self.launch, node=self.node, local_rank=0)
        self.order: m.Regroup | None = None
        self.group: Group | None = None
        self.recent: list[m.StepDone] = []
        self.step = 0
        self.told = 0  # generation of the newest order
        self.fenced = False
        waiting = self._channel("gate")
        gate = self._wait(waiting, m.Gate)
        waiting.close()
        if not isinstance(gate, m.Gate):
            return 70
        self.stage = "standby" if gate.standby else "training"
        self.channel = self._live_channel()
        self.step = gate.resume_step if not gate.standby else -1
        self.rank, self.world = gate.global_rank, gate.world_size
        try:
            if gate.standby:
                self._await_order()
            else:
                self.group = self.net.group(self.generation, self.world)
            return self._train_live()
        except Broken:
            return 70 if self.fenced else 1 if self.crashed else 137
        finally:
            if self.group is not None and not self.frozen:
                self.group.broken.set()
            self.channel.close()

    def crash(self, *, unheard: bool = False) -> None:
        """Exit code 1. `unheard`: nobody says that the step is over."""
        self.vanished = unheard
        self.crashed = True
        self.killed.set()

    def _live_channel(self) -> Channel:
        def hello(address: str) -> m.WorkerHello:
            return m.WorkerHello(
                generation=self.generation,
                node=self.node,
                local_rank=0,
                pid=1,
                stage=self.stage,
                address=address,
                job_id=self.job_id,
                launch=self.launch,
                live=True,
                store_port=4712,
            )

        channel = Channel(self.script.run, hello, heartbeat_s=HEARTBEAT_S, give_up_after_s=20)
        channel.start()
        return channel

    # ---- training

    def _train_live(self) -> int:
        while True:
            self._hear()
            if self.order is not None and (not self.order.planned or self.stage == "standby" or self.step < 0):
                if (left := self._regroup()) is not None:
                    return left
                continue
            time.sleep(STEP_S)
            flags = self._flags()
            try:
                told = self._arrive(self.group, ("step", self.step + 1), flags)
            except Broken:
                if self.killed.is_set() or self.fenced:
                    raise
                self.channel.send(m.Stumbled(generation=self.generation, step=max(0, self.step), error="gloo: closed"))
                self._await_order()
                if (left := self._regroup()) is not None:
                    return left
                continue
            self._commit()
            verdict = max(told.values())
            if verdict >= 2:
                return self._leave("finished" if verdict == 2 else "drained")
            if verdict == 1:
                self._await_order()
                if (left := self._regroup()) is not None:
                    return left

    def _flags(self) -> int:
        if self.drain is not None and self.drain.generation == self.generation:
            return 3
        if self.script.finish.is_set():
            return 2
        return 1 if self.order is not None else 0

    def _commit(self) -> None:
        self.step += 1
        done = self._remember()
        if self.rank == 0 and not self.mute.is_set():
            self.channel.send(m.Steps(generation=self.generation, steps=(done,), total_steps=100_000))

    def _remember(self) -> m.StepDone:
        done = m.StepDone(
            step=self.step,
            world=self.world,
            samples=SAMPLES,
            samples_sha256=digest_of(self.step),
            loss=1 / self.step,
            time=time.time(),
        )
        self.recent = [*self.recent[-50:], done]
        return done

    def _leave(self, why: str) -> int:
        self.channel.send(m.Leaving(generation=self.generation, why=why, step=self.step))
        self.channel.flush(5)
        self.group = None  # nobody is left in the lurch
        return 0

    # ---- changing

    def _regroup(self) -> int | None:
        """The exit code when this worker departs. What fails here is begun again with the next order."""
        while True:
            assert self.order is not None
            order, self.order = self.order, None
            everyone = (*order.seats, *order.departing)
            meeting = self.net.group(("meeting", order.generation), len(everyone))
            try:
                while self.net.hold.is_set():
                    self._look_up(order)
                    time.sleep(0.01)
                steps = self._arrive(meeting, "meet", self.step, order)
            except Broken:
                if self.killed.is_set() or self.fenced:
                    raise
                self._await_order()
                continue
            if self.seat in order.departing:
                return self._leave("drained")
            self._sit(order, max(steps.values()))
            return None

    def _look_up(self, order: m.Regroup) -> None:
        self._hear()
        if self.killed.is_set() or self.fenced or self.order is not None:
            raise Broken

    def _sit(self, order: m.Regroup, step: int) -> None:
        old = self.generation
        while 0 <= self.step < step:  # the others have completed it without us
            self.step += 1
            self._remember()
        self.step = step
        self.rank, self.world = order.seats.index(self.seat), len(order.seats)
        self.generation, self.stage = order.generation, "training"
        self.group = self.net.group(order.generation, self.world)
        self.channel.send(m.Regrouped(generation=order.generation, step=step, received_bytes=MOVED_BYTES, moved_s=0.01))
        if self.rank == 0:
            missing = tuple(done for done in self.recent if order.ledger_step < done.step <= step)
            self.channel.send(m.Steps(generation=old, steps=missing, total_steps=100_000))

    def _arrive(self, group: Group | None, key: object, word: int, order: m.Regroup | None = None) -> dict[m.Seat, int]:
        """What all have said at this point; Broken when somebody is gone or we are called away."""
        assert group is not None
        with self.net.lock:
            said = group.said.setdefault(key, {})
            said[self.seat] = word
        while len(said) < group.size:
            self._hear()
            called = self.order is not None and (order is not None or not self.order.planned)
            if group.broken.is_set() or self.killed.is_set() or self.fenced or called:
                raise Broken
            time.sleep(0.002)
        return said

    # ---- orders

    def _await_order(self) -> None:
        while self.order is None:
            self._hear()
            if self.killed.is_set() or self.fenced:
                raise Broken
            time.sleep(0.005)

    def _hear(self) -> None:
        while True:
            try:
                arrival = self.channel.inbox.get_nowait()
            except queue.Empty:
                break
            match arrival:
                case m.Regroup() if arrival.generation > self.generation:
                    if arrival.generation > self.told:
                        self.order, self.told = arrival, arrival.generation
                case m.Drain():
                    self.drain = arrival
                case m.Fenced():
                    self.fenced = True
        if self.killed.is_set():
            raise Broken


def live_script(script: Script, net: Net) -> None:
    """Make all workers of this script live ones."""

    def make(*who: Any, **options: Any) -> LiveWorker:
        worker = LiveWorker(*who, **options)
        worker.net = net
        worker.mute = threading.Event()
        return worker

    script.worker = make
