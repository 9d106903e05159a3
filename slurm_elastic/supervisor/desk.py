"""Training as seen from outside: gates, drains, steps, saves. One object per supervisor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slurm_elastic.errors import CheckpointError
from slurm_elastic.machine.actions import DrainWorkers, OpenGate
from slurm_elastic.machine.events import CheckpointCommitted, StopRequested, WorkersStayed
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.gates import GatePlan, gate_of, gates, make_plan, save_plan
from slurm_elastic.supervisor.progress import Progress
from slurm_elastic.supervisor.records import Records
from slurm_elastic.supervisor.regroups import Regroups
from slurm_elastic.supervisor.seats import seat_of, standby_gate
from slurm_elastic.supervisor.workers import Workers
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

log = logging.getLogger(__name__)

SAVES_KEPT = 50  # durations of saves that the p95 is taken from
SPEAKERS_KEPT = 20
TOLD_AT_ONCE = 200  # workers, before others have their turn: thousands in one go would hold everything up


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    step: int = 0
    time: float = 0.0  # Unix seconds when it became public
    name: str = ""


@dataclass(slots=True)
class TrainingDesk:
    """`spawn` runs a coroutine beside the loop; `note(kind, generation, reason, figures)` writes an event.

    `must_be_live`: the user wants to hear of it when the script cannot regroup in place.
    """

    run: RunDirectory
    course: Course
    workers: Workers
    records: Records
    progress: Progress
    regroups: Regroups
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    note: Callable[..., None]
    must_be_live: bool = False
    plan: GatePlan | None = None
    last_checkpoint: LastCheckpoint = LastCheckpoint()
    warnings: dict[str, str] = field(default_factory=dict)  # the last one of each speaker
    save_s: deque[float] = field(default_factory=lambda: deque(maxlen=SAVES_KEPT))
    _drain: m.Drain | None = None
    _opening: int = 0  # generation whose gate is being opened now

    # ---- orders of the machine

    async def open_gate(self, order: OpenGate) -> None:
        """Pick what is resumed, write the plan down, tell the workers. A repeat tells them the same again."""
        if self._opening == order.generation:
            return
        self._opening = order.generation
        try:
            if self.plan is None or self.plan.generation != order.generation:
                self.plan = await self._decide(order) or self.plan
        finally:
            self._opening = 0
        if self.plan is None or self.plan.generation != order.generation:
            log.warning("gate stays closed generation=%d: overtaken by events", order.generation)
            return
        for number, (place, gate) in enumerate(gates(self.plan, self.course.epoch), start=1):
            self.workers.send_to(order.generation, *place, gate)
            if number % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
                if not self.course.is_live(order.generation):
                    return

    def begin_drain(self, order: DrainWorkers) -> bool:
        """Ask the workers to stop at a boundary. False: they cannot be asked (level 0, or not that far yet)."""
        if not self.has_trained(order.generation):
            return False
        self._drain = m.Drain(
            epoch=self.course.epoch,
            generation=order.generation,
            reason=order.reason,
            save=order.save,
            deadline=order.deadline,
            may_stay=order.may_stay,
        )
        self.workers.send(self.course.places(order.generation), self._drain)
        return True

    def has_trained(self, generation: int) -> bool:
        """Whether a script of this generation has reached the library, also before a restart of ours."""
        plan, live = self.plan, self.course.state.live
        if live is not None and live.live and live.number == generation:
            return True
        return self.workers.has_trained(generation) or bool(plan and plan.generation == generation and plan.trained)

    def note_attendance(self) -> None:
        """Once a second: write down when every worker has reached the library."""
        plan = self.plan
        if plan is None or plan.joined or not plan.trained or not self.course.is_live(plan.generation):
            return
        if self.workers.all_training(plan.generation, plan.nodes):
            self.plan = joined = msgspec.structs.replace(plan, joined=True)
            self.spawn(self.records.write(lambda: save_plan(self.run, joined)))
            if self.must_be_live and not self.workers.all_elastic(self.course.places(plan.generation)):
                self.warned("elastic.transition", "live, but the script does not use run.build: it is started anew")

    # ---- what the roster passes on

    def worker_joined(self, hello: m.WorkerHello) -> Iterator[m.Message]:
        """What this worker must be told at once: its gate, its new seat, a drain that is going on."""
        plan = self.plan
        if hello.stage == "gate":
            gate = None
            if self.course.is_standby(hello.generation):
                gate = standby_gate(hello, self.course.epoch, self.course.workers_per_node)
            elif plan is not None and plan.generation == hello.generation:
                gate = gate_of(plan, self.course.epoch, hello.node, hello.local_rank)
            yield from () if gate is None else (gate,)
            return
        if plan is not None and plan.generation == hello.generation and not plan.trained:
            self.plan = trained = msgspec.structs.replace(plan, trained=True)
            self.spawn(self.records.write(lambda: save_plan(self.run, trained)))
        regroup = self.regroups.joined(hello)
        if regroup is not None:
            yield regroup
        drain, launch = self._drain, seat_of(hello).launch
        if drain is not None and (launch, hello.node) in self.course.places(drain.generation):
            yield drain

    def steps(self, link: Link, told: m.Steps) -> None:
        past = self.regroups.past(told)
        if past is not None:
            self.progress.past(past)
            self.spawn(self._keep_steps(told.generation, past, link.hold_receipt()))
            return
        fresh = self.progress.steps(told, time.time())
        self.spawn(self._keep_steps(told.generation, fresh, link.hold_receipt()))

    def saved(self, link: Link, saved: m.Saved) -> None:
        self.spawn(self._publish(link, saved, link.hold_receipt()))

    def save_failed(self, failed: m.SaveFailed) -> None:
        self.warned("checkpoint", f"the save of step {failed.step} failed: {failed.reason}")

    def stayed(self, stayed: m.Stayed) -> None:
        if self._drain is not None and self._drain.generation == stayed.generation:
            self._drain = None
        self.course.post(WorkersStayed(generation=stayed.generation, reason=stayed.reason))

    def warned(self, who: str, text: str) -> None:
        log.warning("warning from=%s text=%s", who, text)
        if self.warnings.get(who) == text:
            return
        if len(self.warnings) < SPEAKERS_KEPT or who in self.warnings:
            self.warnings[who] = text
        self.note("warning", self.course.state.generation, f"{who}: {text}")

    @property
    def save_p95_s(self) -> float:
        """How long a save takes, 95 of 100 times; 0 when none was measured."""
        ordered = sorted(self.save_s)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else 0.0

    @property
    def _is_suspect(self) -> bool:
        """Whether the last generation that loaded a checkpoint did not get one step beyond it."""
        return self.plan is not None and self.plan.resume_step > 0 and self.progress.last[0] <= self.plan.resume_step

    async def _decide(self, order: OpenGate) -> GatePlan | None:
        """The plan, durable; None when this generation ended meanwhile. All it resumes from is public by now."""
        try:
            resume = await self.records.newest(saved=self.course.state.best_step > 0, suspect=self._is_suspect)
        except CheckpointError as useless:
            self.warned("checkpoint", useless.problem)
            way_out = f"to start from nothing, remove {self.run.ledger} and submit again"
            self.course.post(StopRequested(reason=f"{useless.problem}; {way_out}"))
            return None
        first = self.workers.at_gate(order.generation, order.members[0].node)
        if not self.course.is_live(order.generation) or not first:
            return None
        await self.records.rewind(resume[1])
        per_node = self.course.workers_per_node
        plan = make_plan(order.generation, order.members, first[0], per_node=per_node, resume=resume)
        step, when = self.progress.last
        plan = msgspec.structs.replace(plan, opened=time.time(), before_step=step, before_time=when)
        await self.records.write(lambda: save_plan(self.run, plan))
        self.progress.gate_opened(order.generation, resume[1], plan.opened)
        self.workers.forget_before(order.generation)
        return plan

    async def _keep_steps(self, generation: int, fresh: Sequence[m.StepDone], safe: Callable[[], None]) -> None:
        """Also without fresh ones: those of the message before, which this one repeats, may still be on their way."""
        await self.records.add_steps(generation, fresh)
        safe()

    async def _publish(self, link: Link, saved: m.Saved, safe: Callable[[], None]) -> None:
        done = await self.records.publish(saved)
        if done.problem:
            self.warned("checkpoint", done.problem)
        else:
            self.warnings.pop("checkpoint", None)
            self.save_s.append(saved.save_s)
            self.last_checkpoint = LastCheckpoint(saved.step, time.time(), done.name)
            fact = CheckpointCommitted(generation=saved.generation, step=saved.step, save_s=saved.save_s)
            self.course.post(fact)
            self.note(
                "checkpoint",
                saved.generation,
                "published",
                step=saved.step,
                save_s=saved.save_s,
                bytes=saved.size_bytes,
            )
        link.send(m.Published(step=saved.step, ok=not done.problem, reason=done.problem))
        safe()
