"""Thousands of workers in one process: they wait at the gate, then train and beat, all through the real wire.

They speak it with the library's own authentication and frames, but do not check the echoes of their beats: that would
cost as much as all that the supervisor does, and the machine has to do both.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Literal

from benchmarks.limits import pin, raise_descriptors, stand_alone
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.wire import auth
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import Decoders, Opener, Sealer, encode

CONNECTING_AT_ONCE = 50
RETRY_S = 0.2
STEP_S = 0.1  # of rank 0
WATCH_S = 0.1

Stage = Literal["gate", "training"]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker sits."""

    node: str
    local_rank: int
    global_rank: int


@dataclass(frozen=True, slots=True)
class Signs:
    """What the processes of a benchmark tell each other. Each process counts into its own place."""

    stop: Event
    waiting: Synchronized[int]  # at the gate
    training: Synchronized[int]
    refused: Synchronized[int]  # connections that came to nothing
    lost: Synchronized[int]
    fenced: Synchronized[int]  # workers that the supervisor has given up

    def __str__(self) -> str:
        """What there is now."""
        counts = ("waiting", "training", "refused", "lost", "fenced")
        return ", ".join(f"{getattr(self, name).value} {name}" for name in counts)


class Worker(asyncio.Protocol):
    """One connection. `met` is set by the Welcome; a worker at the gate goes on in a second connection."""

    def __init__(self, crowd: Crowd, seat: Seat, stage: Stage) -> None:
        self.crowd, self.seat, self.stage = crowd, seat, stage
        self.met = asyncio.get_running_loop().create_future()
        self._nonce = auth.new_nonce()
        self._early = bytearray()
        self._sealer: Sealer | None = None
        self._heartbeat = encode(m.Beat())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(auth.greet(self._nonce))

    def data_received(self, data: bytes) -> None:
        if self.stage == "training" and self.met.done():
            return  # echoes
        if self._sealer is None:
            self._early += data
            if len(self._early) < auth.CHALLENGE_BYTES:
                return
            data = bytes(self._early[auth.CHALLENGE_BYTES :])
            self._answer(bytes(self._early[: auth.CHALLENGE_BYTES]))
        for body in self._opener.feed(data):
            self._hear(self.crowd.decoders.from_supervisor(body))

    def connection_lost(self, broken: Exception | None) -> None:
        if not self.met.done():
            self.met.set_exception(broken or ConnectionError("the supervisor hung up"))
        self.crowd.gone(self)

    def send(self, message: m.Message) -> None:
        if self._sealer is not None:
            self.transport.write(self._sealer.seal(encode(message)))

    def _answer(self, challenge: bytes) -> None:
        proof, keys = auth.answer(self.crowd.token, self._nonce, challenge)
        self._sealer, self._opener = Sealer(keys.to_server), Opener(keys.to_client)
        hello = m.WorkerHello(
            generation=1,
            node=self.seat.node,
            local_rank=self.seat.local_rank,
            pid=1,
            stage=self.stage,
            address="127.0.0.1",
            port=4711,
            global_rank=self.seat.global_rank if self.stage == "training" else -1,
        )
        self.transport.write(proof + self._sealer.seal(encode(hello)))

    def _hear(self, message: m.AnyMessage) -> None:
        if isinstance(message, m.Welcome):
            self.met.set_result(None)
            self.crowd.welcomed(self, message.heartbeat_s)
        elif isinstance(message, m.Gate):
            self.crowd.gate_opened(self)
        elif isinstance(message, m.Fenced):
            _count(self.crowd.signs.fenced)


class Crowd:
    """All workers of one process, in its loop."""

    def __init__(self, run: RunDirectory, signs: Signs) -> None:
        endpoint = json.loads(run.endpoint.read_text())
        self.host, self.port = str(endpoint["host"]), int(endpoint["port"])
        self.token = run.read_token()
        self.decoders = Decoders()
        self.signs = signs
        self._turnstile = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._there: set[Worker] = set()

    async def live(self, seats: Sequence[Seat]) -> None:
        """Until told to stop."""
        for seat in seats:
            self._enter(seat, "gate")
        while not self.signs.stop.is_set():
            await asyncio.sleep(WATCH_S)
        there, self._there = self._there, set()
        for worker in there:
            worker.transport.abort()

    def welcomed(self, worker: Worker, heartbeat_s: float) -> None:
        self._there.add(worker)
        _count(self._counter(worker.stage))
        loop = asyncio.get_running_loop()
        loop.call_later(random.uniform(0, heartbeat_s), self._beat, worker, heartbeat_s)
        if worker.stage == "training" and worker.seat.global_rank == 0:
            loop.call_later(STEP_S, self._step, worker, 1)

    def gate_opened(self, worker: Worker) -> None:
        self._there.discard(worker)
        worker.transport.close()
        self._enter(worker.seat, "training")

    def gone(self, worker: Worker) -> None:
        """It comes back, as the library does."""
        if worker in self._there:
            self._there.discard(worker)
            _count(self.signs.lost)
            _count(self._counter(worker.stage), -1)
            self._enter(worker.seat, worker.stage)

    def _counter(self, stage: Stage) -> Synchronized[int]:
        return self.signs.waiting if stage == "gate" else self.signs.training

    def _enter(self, seat: Seat, stage: Stage) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(seat, stage))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, seat: Seat, stage: Stage) -> None:
        """Tries again, as the library does."""
        loop = asyncio.get_running_loop()
        async with self._turnstile:
            while not self.signs.stop.is_set():
                try:
                    _, worker = await loop.create_connection(lambda: Worker(self, seat, stage), self.host, self.port)
                    await worker.met
                    return
                except OSError:
                    _count(self.signs.refused)
                    await asyncio.sleep(RETRY_S)

    def _beat(self, worker: Worker, heartbeat_s: float) -> None:
        if worker in self._there:
            worker.send(m.Beat(step=1))
            asyncio.get_running_loop().call_later(heartbeat_s, self._beat, worker, heartbeat_s)

    def _step(self, worker: Worker, step: int) -> None:
        if worker not in self._there:
            return
        done = m.StepDone(
            step=step,
            world=1,
            samples=8,
            samples_sha256=hashlib.sha256(str(step).encode()).hexdigest(),
            loss=1 / step,
            time=time.time(),
        )
        worker.send(m.Steps(generation=1, steps=(done,), total_steps=1_000_000))
        asyncio.get_running_loop().call_later(STEP_S, self._step, worker, step + 1)


def live(run_dir: Path, seats: Sequence[Seat], signs: Signs, cpus: Sequence[int]) -> None:
    """The whole life of a process with these workers."""
    stand_alone()
    raise_descriptors()
    pin(cpus)

    async def alive() -> None:
        await Crowd(RunDirectory(run_dir), signs).live(seats)

    asyncio.run(alive())


def _count(counter: Synchronized[int], change: int = 1) -> None:
    with counter.get_lock():
        counter.value += change
