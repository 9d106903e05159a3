"""The agent of one Slurm job: it launches workers, kills them, hears notices, and tells the supervisor. It decides
nothing. One loop reads one queue; whatever takes time runs in a thread that puts its answer there."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.agent import notices
from slurm_elastic.agent.failure import NODE_FAILED
from slurm_elastic.agent.steps import SideStep, StepOver, StepPlace, Steps, StepSpec
from slurm_elastic.machine.events import StepHeld
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel, Connected, Disconnected, GaveUp, RefusedBy

log = logging.getLogger(__name__)

_END_S = 15.0  # for steps to end after they were killed
_FLUSH_S = 3.0
_PROBE_S = 15.0


@dataclass(frozen=True, slots=True)
class SignalHeard:
    name: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the keeper must end: the job's exit code, and whether the run itself is over."""

    exit_code: int
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """All that an agent is told at its start. `spec_of` makes the steps of a launch; `probe_argv` a trivial one."""

    run_dir: RunDirectory
    role: str
    job_id: int
    nodes: tuple[str, ...]
    qos: str
    restart_count: int
    heartbeat_s: float
    give_up_after_s: float
    notice: m.AgentNotice | None
    lookup: notices.Lookup
    specs_of: Callable[[int, tuple[str, ...]], tuple[StepSpec, ...]]
    probe_argv: Callable[[str], tuple[str, ...]]
    deputy: StepSpec | None
    place: StepPlace
    sweep: Callable[[int, tuple[str, ...]], None]
    environ: Mapping[str, str] = field(repr=False)


class Agent:
    """`run()` in the main thread. `heard` may be called from a signal handler."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._incarnation = uuid.uuid4().hex
        self._notice = setup.notice
        self._steps = Steps(setup.place, self._queue.put, setup.sweep)
        self._channel = Channel(
            setup.run_dir,
            self._hello,
            heartbeat_s=setup.heartbeat_s,
            give_up_after_s=setup.give_up_after_s,
            inbox=self._queue,
        )

    def heard(self, name: str) -> None:
        """A notice signal arrived."""
        self._queue.put(SignalHeard(name))

    def run(self) -> Verdict:
        """Until the supervisor releases this allocation, or there is none for too long. No step is left then."""
        self._channel.start()
        deputy = SideStep(self._setup.deputy, self._setup.place) if self._setup.deputy else None
        while True:
            verdict = self._react(self._queue.get())
            if verdict is not None:
                if deputy is not None:
                    deputy.end()
                self._end_steps()
                self._channel.flush(_FLUSH_S)
                self._channel.close()
                return verdict

    def _hello(self, address: str) -> m.AgentHello:
        setup, notice = self._setup, self._notice
        return m.AgentHello(
            job_id=setup.job_id,
            role=setup.role,
            nodes=setup.nodes,
            incarnation=self._incarnation,
            restart_count=setup.restart_count,
            qos=setup.qos,
            steps=tuple(StepHeld(generation=generation, node=node) for generation, node in self._steps.held()),
            notice_source=notice.source if notice else "",
            notice_deadline=notice.deadline if notice else None,
        )

    def _react(self, arrival: object) -> Verdict | None:
        match arrival:
            case SignalHeard(name):
                self._look(name)
            case m.AgentNotice():
                self._tell_notice(arrival)
            case StepOver():
                self._tell_over(arrival)
            case m.ProbeAnswer():
                self._channel.send(arrival)
            case m.Launch():
                self._launch(arrival)
            case m.Kill():
                log.info("kill generation %d on %s: %s", arrival.generation, arrival.nodes or "all", arrival.reason)
                self._steps.kill(arrival.generation, arrival.nodes, alone=arrival.alone)
            case m.Probe():
                self._in_thread(lambda: self._probe(arrival.node))
            case m.Release():
                log.info("released: %s", arrival.reason)
                return Verdict(arrival.exit_code, arrival.final)
            case GaveUp(reason):
                log.error("ending: %s", reason)
                return Verdict(1, final=False)
            case RefusedBy(reason):
                log.error("the supervisor does not want this allocation: %s", reason)
                return Verdict(0, final=False)
            case Connected() | Disconnected():
                log.info("%s", arrival)
            case _:
                log.warning("ignored %s", arrival)
        return None

    # ---- orders

    def _launch(self, order: m.Launch) -> None:
        held = set(self._steps.held())
        nodes = tuple(node for node in order.nodes if (order.generation, node) not in held)
        if nodes:
            log.info("launching generation %d on %s", order.generation, ",".join(nodes))
            for spec in self._setup.specs_of(order.generation, nodes):
                self._steps.start(spec)

    def _probe(self, node: str) -> m.ProbeAnswer:
        try:
            done = subprocess.run(
                self._setup.probe_argv(node),
                env=dict(self._setup.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as broken:
            return m.ProbeAnswer(node=node, ok=False, detail=str(broken))
        ok = done.returncode == 0 and NODE_FAILED not in done.stderr
        return m.ProbeAnswer(node=node, ok=ok, detail=done.stderr.strip()[-500:])

    def _end_steps(self) -> None:
        """Tasks first, then the batch script: the nodes are free at once, without Slurm's KillWait."""
        deadline = time.monotonic() + _END_S
        while held := self._steps.held():
            self._steps.kill(held[-1][0])
            try:
                arrival = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                log.error("steps are still there, Slurm will have to end them: %s", held)
                return
            if isinstance(arrival, StepOver):
                self._tell_over(arrival)

    # ---- reports

    def _look(self, signal_name: str) -> None:
        """Tell at once; what Slurm's record says comes behind, however slow the controller is."""
        self._tell_notice(m.AgentNotice(source=signal_name, deadline=self._notice.deadline if self._notice else None))
        self._in_thread(lambda: notices.explain(signal_name, self._setup.lookup(), time.time()))

    def _tell_notice(self, notice: m.AgentNotice) -> None:
        if notice != self._notice:
            self._notice = notice
            self._channel.send(notice)

    def _tell_over(self, over: StepOver) -> None:
        spec, ending = over.spec, over.ending
        log.info("generation %d on %s ended: %s", spec.generation, ",".join(spec.nodes), ending)
        for node in spec.nodes:
            self._channel.send(
                m.StepEnded(
                    generation=spec.generation,
                    node=node,
                    exit_code=ending.exit_code,
                    signal=ending.signal,
                    detail=ending.detail,
                )
            )

    def _in_thread(self, ask: Callable[[], object]) -> None:
        threading.Thread(target=lambda: self._queue.put(ask()), daemon=True).start()
