"""Scripted agents and workers that talk to a real supervisor over loopback; no Slurm, no torch."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_elastic.checkpoint.layout import draft_name
from slurm_elastic.checkpoint.manifest import About, Manifest, file_facts, write_manifest
from slurm_elastic.machine.events import StepHeld
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel

HEARTBEAT_S = 0.1
STEP_S = 0.02
SAVE_EVERY = 10
SAMPLES = 8


@dataclass(slots=True)
class Script:
    """What all workers have in common: the training script, so to say."""

    run: RunDirectory
    finish: threading.Event = field(default_factory=threading.Event)
    worker: Callable[..., Worker] | None = None  # makes the workers of another kind of script
    log: list[str] = field(default_factory=list)


class Worker(threading.Thread):
    """One process of a node: waits at the gate, then trains. `ended` is called with its exit code."""

    def __init__(
        self, script: Script, job_id: int, node: str, generation: int, ended: Callable[[int], None], *, level: int = 1
    ) -> None:
        super().__init__(daemon=True, name=f"worker {generation}/{node}")
        self.script, self.job_id, self.node, self.generation, self.level = script, job_id, node, generation, level
        self.ended = ended
        self.killed = threading.Event()
        self.frozen = False
        self.drain: m.Drain | None = None
        self.ordered_to_end = threading.Event()
        self.vanished = False  # power loss: nobody says anything any more

    def freeze(self) -> None:
        """It says nothing any more, but it is there until it is killed."""
        self.frozen = True
        self.killed.set()

    def kill(self) -> None:
        self.killed.set()
        self.ordered_to_end.set()

    def run(self) -> None:
        code = self._life()
        if self.frozen:
            self.ordered_to_end.wait(30)
        if not self.vanished:
            self.ended(code)

    def _channel(self, stage: str, global_rank: int = -1) -> Channel:
        def hello(address: str) -> m.WorkerHello:
            return m.WorkerHello(
                generation=self.generation,
                node=self.node,
                local_rank=0,
                pid=1,
                stage=stage,
                address=address,
                port=4711,
                global_rank=global_rank,
                job_id=self.job_id,
            )

        channel = Channel(self.script.run, hello, heartbeat_s=HEARTBEAT_S, give_up_after_s=20)
        channel.start()
        return channel

    def _wait(self, channel: Channel, *kinds: type) -> object:
        while not self.killed.is_set():
            try:
                arrival = channel.inbox.get(timeout=0.02)
            except queue.Empty:
                continue
            if isinstance(arrival, (*kinds, m.Fenced)):
                return arrival
            if isinstance(arrival, m.Drain):
                self.drain = arrival  # it came while we waited for something else
        return None

    def _life(self) -> int:
        waiting = self._channel("gate")
        gate = self._wait(waiting, m.Gate)
        waiting.close()
        if not isinstance(gate, m.Gate):
            return 70
        if self.level == 0:
            while not self.killed.wait(0.02):
                if self.script.finish.is_set():
                    return 0
            return 143
        channel = self._channel("training", gate.global_rank)
        try:
            return self._train(gate, channel)
        finally:
            channel.close()

    def _train(self, gate: m.Gate, channel: Channel) -> int:
        step = gate.resume_step
        leader = gate.global_rank == 0
        while not self.killed.is_set():
            time.sleep(STEP_S)
            order: object = self.drain
            while not channel.inbox.empty():
                arrival = channel.inbox.get()
                order = arrival if isinstance(arrival, m.Drain | m.Fenced) else order
            if isinstance(order, m.Fenced):
                return 70
            if order is not None or self.script.finish.is_set():
                why = "drained" if order is not None else "finished"
                if leader and step and not self._save(channel, gate, step):
                    return 1
                channel.send(m.Leaving(generation=self.generation, why=why, step=step))
                channel.flush(5)
                return 0
            step += 1
            if leader:
                done = m.StepDone(
                    step=step,
                    world=gate.world_size,
                    samples=SAMPLES,
                    samples_sha256=digest_of(step),
                    loss=1 / step,
                    time=time.time(),
                )
                channel.send(m.Steps(generation=self.generation, steps=(done,), total_steps=1000))
                if step % SAVE_EVERY == 0:
                    self._save(channel, gate, step)
        return 137

    def _save(self, channel: Channel, gate: m.Gate, step: int) -> bool:
        draft = self.script.run.checkpoints / draft_name(self.generation, step)
        draft.mkdir(exist_ok=True)
        (draft / "state").write_text(str(step))
        about = About(step=step, generation=self.generation, world=gate.world_size)
        write_manifest(draft, Manifest(about=about, files={"state": file_facts(draft / "state")}))
        channel.send(m.Saved(generation=self.generation, step=step, directory=draft.name, save_s=0.01))
        answer = self._wait(channel, m.Published)
        return isinstance(answer, m.Published) and answer.ok


class Agent(threading.Thread):
    """The agent of one job: one worker per node. `job_over` is called when it leaves because it was released."""

    def __init__(
        self,
        script: Script,
        job_id: int,
        role: str,
        nodes: tuple[str, ...],
        job_over: Callable[[], None],
        *,
        level: int = 1,
    ) -> None:
        super().__init__(daemon=True, name=f"agent {job_id}")
        self.script, self.job_id, self.role, self.nodes, self.level = script, job_id, role, nodes, level
        self.job_over = job_over
        self.workers: dict[tuple[int, str], Worker] = {}
        self.released: m.Release | None = None
        self.off = threading.Event()
        self.channel = Channel(script.run, self._hello, heartbeat_s=HEARTBEAT_S, give_up_after_s=20)
        self.start()

    def _hello(self, address: str) -> m.AgentHello:
        held = tuple(StepHeld(generation=generation, node=node) for generation, node in list(self.workers))
        return m.AgentHello(
            job_id=self.job_id, role=self.role, nodes=self.nodes, incarnation=f"a{self.job_id}", steps=held, qos="q"
        )

    def run(self) -> None:
        self.channel.start()
        while not self.off.is_set() and self.released is None:
            try:
                arrival = self.channel.inbox.get(timeout=0.05)
            except queue.Empty:
                continue
            match arrival:
                case m.Launch():
                    for node in arrival.nodes:
                        self._launch(arrival.generation, node)
                case m.Kill():
                    for (generation, node), worker in list(self.workers.items()):
                        old = generation == arrival.generation or (
                            generation < arrival.generation and not arrival.alone
                        )
                        if old and (not arrival.nodes or node in arrival.nodes):
                            worker.kill()
                case m.Probe():
                    self.channel.send(m.ProbeAnswer(node=arrival.node, ok=True))
                case m.Release():
                    self.released = arrival
        self._leave()

    def notice(self, source: str, deadline: float) -> None:
        self.channel.send(m.AgentNotice(source=source, deadline=deadline))

    def lose_power(self) -> None:
        """Everything on its nodes falls silent at once."""
        for worker in self.workers.values():
            worker.vanished = True
            worker.killed.set()
        self.off.set()

    def _launch(self, generation: int, node: str) -> None:
        if (generation, node) in self.workers:
            return

        def ended(code: int) -> None:
            self.workers.pop((generation, node), None)
            self.channel.send(m.StepEnded(generation=generation, node=node, exit_code=code))

        worker = (self.script.worker or Worker)(self.script, self.job_id, node, generation, ended, level=self.level)
        self.workers[(generation, node)] = worker
        worker.start()

    def _leave(self) -> None:
        for worker in list(self.workers.values()):
            worker.kill()
        if self.released is not None:
            self.channel.flush(2)
            self.job_over()
        self.channel.close()


def wait_until(what: Callable[[], object], why: str, timeout_s: float = 30.0) -> None:
    """Bounded; fails the test with `why`."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"timed out: {why}"
        time.sleep(0.02)


def digest_of(step: int) -> str:
    return hashlib.sha256(str(step).encode()).hexdigest()


def ledger_steps(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
