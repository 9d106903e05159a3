"""Training as seen from outside: gates, drains, steps, saves. One object per supervisor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
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
    """`spawn` runs a coroutine beside the loop; `note(kind, generation, reason, figures)` writes an event."""

    run: RunDirectory
    course: Course
    workers: Workers
    records: Records
    progress: Progress
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    note: Callable[..., None]
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
        self.workers.send(order.generation, self._drain, "training")
        return True

    def has_trained(self, generation: int) -> bool:
        """Whether a script of this generation has reached the library, also before a restart of ours."""
        plan = self.plan
        return self.workers.has_trained(generation) or bool(plan and plan.generation == generation and plan.trained)

    def note_attendance(self) -> None:
        """Once a second: write down when every worker has reached the library."""
        plan = self.plan
        if plan is None or plan.joined or not plan.trained or not self.course.is_live(plan.generation):
            return
        if self.workers.all_training(plan.generation, plan.nodes):
            self.plan = joined = msgspec.structs.replace(plan, joined=True)
            self.spawn(self.records.write(lambda: save_plan(self.run, joined)))

    # ---- what the roster passes on

    def worker_joined(self, hello: m.WorkerHello) -> m.Message | None:
        plan = self.plan
        if plan is None or plan.generation != hello.generation:
            return None
        if hello.stage == "gate":
            return gate_of(plan, self.course.epoch, hello.node, hello.local_rank)
        if not plan.trained:
            self.plan = trained = msgspec.structs.replace(plan, trained=True)
            self.spawn(self.records.write(lambda: save_plan(self.run, trained)))
        drain = self._drain
        return drain if drain is not None and drain.generation == hello.generation else None

    def steps(self, link: Link, told: m.Steps) -> None:
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

    async def _decide(self, order: OpenGate) -> GatePlan | None:
        """The plan, durable; None when this generation ended meanwhile. All it resumes from is public by now."""
        try:
            resume = await self.records.newest()
        except CheckpointError as useless:
            self.warned("checkpoint", useless.problem)
            self.course.post(StopRequested(reason=f"{useless.problem}; submit again to start from nothing"))
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
