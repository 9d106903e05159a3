"""Live transitions as the supervisor carries them out: who is told which seat, who has arrived, who has stumbled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slurm_elastic.machine import actions as a
from slurm_elastic.machine.events import (
    GenerationElastic,
    GenerationRegrouped,
    GenerationStumbled,
    RegroupFailed,
)
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.progress import Progress
from slurm_elastic.supervisor.records import Records
from slurm_elastic.supervisor.seats import RegroupPlan, make_plan, regroup_message, save_plan, seat_of
from slurm_elastic.supervisor.workers import Workers
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

log = logging.getLogger(__name__)

AWAY_S = 0.2  # a trainer's connection that is closed for so long while a peer has stumbled: its process is gone
TOLD_AT_ONCE = 200  # workers, before others have their turn
STUMBLED_S = 10.0  # for so long after a stumble


@dataclass(slots=True)
class Regroups:
    """`spawn` runs a coroutine beside the loop."""

    run: RunDirectory
    course: Course
    workers: Workers
    records: Records
    progress: Progress
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    plan: RegroupPlan | None = None
    _order: a.Regroup | None = None  # waits for the hello of its first seat
    _arrived: dict[m.Seat, m.Regrouped | None] = field(default_factory=dict)
    _elastic: int = 0  # generation that was said to be
    _stumbled: float = float("-inf")  # monotonic

    # ---- the machine's order

    def order(self, order: a.Regroup) -> None:
        """Decide the seats, write them down, tell the workers. A repeat tells them the same again."""
        self._order = order
        self._carry_out()

    def _carry_out(self) -> None:
        """As soon as the first seat's worker is known: a new supervisor hears of it only when it has reconnected."""
        order = self._order
        if order is None:
            return
        if self.plan is None or self.plan.generation != order.generation:
            first = order.members[0]
            hello = self.workers.hello((first.launch, first.node), 0)
            if hello is None:
                return
            if not hello.store_port:
                self._order = None
                self.course.post(RegroupFailed(generation=order.generation, reason=f"{first.node} keeps no store"))
                return
            last = self.records.ledger.last
            leaving = tuple(m for m in order.departing if not self.workers.is_leaving((m.launch, m.node)))
            order = msgspec.structs.replace(order, departing=leaving)
            per_node = self.course.workers_per_node
            self.plan = make_plan(order, hello, per_node=per_node, ledger_step=last.step if last else 0)
            self._arrived.clear()
        self._order = None
        self.spawn(self._tell(self.plan))

    async def _tell(self, plan: RegroupPlan) -> None:
        await self.records.write(lambda: save_plan(self.run, plan))
        if self.plan is not None and self.plan.generation == plan.generation:
            told = regroup_message(plan, self.course.epoch)
            for number, seat in enumerate((*plan.seats, *plan.departing), start=1):
                self.workers.send_to(seat.launch, seat.node, seat.local_rank, told)
                if number % TOLD_AT_ONCE == 0:
                    await asyncio.sleep(0)

    # ---- what workers say

    def joined(self, hello: m.WorkerHello) -> m.Regroup | None:
        """A worker is back: where it has to go, if it does not know yet."""
        self._carry_out()
        self._note_elastic()
        plan, seat = self.plan, seat_of(hello)
        if plan is None or not self.course.is_live(plan.generation):
            return None
        if hello.generation == plan.generation:
            if seat in plan.seats:  # it said so to the supervisor before this one
                self._arrive(plan, seat, None)
            return None
        concerned = seat in plan.seats or seat in plan.departing
        return regroup_message(plan, self.course.epoch) if concerned else None

    def regrouped(self, link: Link, told: m.Regrouped) -> None:
        plan, hello = self.plan, link.hello
        if plan is None or plan.generation != told.generation or not isinstance(hello, m.WorkerHello):
            return
        seat = seat_of(hello)
        if seat in plan.seats:
            self._arrive(plan, seat, told)
            self.spawn(self._when_safe(link.hold_receipt()))

    def failed(self, name: str, told: m.RegroupFailed) -> None:
        log.error("regroup failed worker=%s generation=%d reason=%s", name, told.generation, told.reason)
        self.course.post(RegroupFailed(generation=told.generation, reason=f"{name}: {told.reason}"))

    def stumbled(self, name: str, told: m.Stumbled) -> None:
        log.warning("stumbled worker=%s generation=%d step=%d error=%s", name, told.generation, told.step, told.error)
        self._stumbled = time.monotonic()
        self.course.post(GenerationStumbled(generation=told.generation, reason=f"{name}: {told.error}"))
        self._look_soon()

    def closed(self) -> None:
        """A worker's connection was closed."""
        if time.monotonic() - self._stumbled < STUMBLED_S:
            self._look_soon()

    # ---- what others ask

    def takes(self, generation: int) -> bool:
        """Whether steps of `generation` count: those of the one before do, too."""
        live, plan = self.course.state.live, self.plan
        if live is None:
            return False
        if generation == live.number:
            return plan is not None and plan.generation == generation and plan.begun
        return live.before <= generation < live.number

    def past(self, told: m.Steps) -> tuple[m.StepDone, ...] | None:
        """Steps that were made before the regroup and are told behind it; None when these are no such steps.

        The new rank 0 tells what the one before it did not come to. What goes beyond its own step will be done again.
        """
        plan = self.plan
        if plan is None or not plan.begun or told.generation >= plan.generation:
            return None
        return tuple(done for done in told.steps if done.step <= plan.step)

    def figures(self, generation: int) -> dict[str, Any]:
        """What the workers said of the regroup into `generation`, together."""
        if self.plan is None or self.plan.generation != generation:
            return {}
        told = [each for each in self._arrived.values() if each is not None]
        return {
            "moved_bytes": sum(each.received_bytes for each in told),
            "moved_s": round(max((each.moved_s for each in told), default=0.0), 4),
            "regroup_s": round(max((each.regroup_s for each in told), default=0.0), 4),
        }

    # ---- inside

    def _arrive(self, plan: RegroupPlan, seat: m.Seat, told: m.Regrouped | None) -> None:
        """`told` None: it was said to another supervisor. What that one has not written down is said again."""
        self._arrived[seat] = told or self._arrived.get(seat)
        self.workers.moved_on(seat, plan.generation)
        if seat == plan.seats[0] and not plan.begun and told is not None:
            plan = self._begin(plan, told.step)
        if len(self._arrived) == len(plan.seats) and plan.begun:
            self.course.post(GenerationRegrouped(generation=plan.generation, step=plan.step))
            self.progress.release()

    def _begin(self, plan: RegroupPlan, step: int) -> RegroupPlan:
        """The new rank 0 goes on after `step`. What was committed beyond it by the lost will be done again."""
        before_step, before_time = self.progress.last
        if step < before_step:
            self.spawn(self._rewind(step))
        now = time.time()
        begun = msgspec.structs.replace(
            plan, begun=True, opened=now, step=step, before_step=before_step, before_time=before_time
        )
        self.plan = begun
        self.progress.regrouped(plan.generation, step, now)
        self.spawn(self.records.write(lambda: save_plan(self.run, begun)))
        return begun

    async def _rewind(self, step: int) -> None:
        await self.records.rewind(step)

    async def _when_safe(self, safe: Callable[[], None]) -> None:
        await self.records.settled()
        safe()

    def _note_elastic(self) -> None:
        """Once all workers of the live generation have said that they can regroup."""
        live = self.course.state.live
        if live is None or live.elastic or self._elastic == live.number or not self.course.state.policy.live:
            return
        if self.workers.all_elastic(self.course.places(live.number)):
            self._elastic = live.number
            self.course.post(GenerationElastic(generation=live.number))

    def _look_soon(self) -> None:
        asyncio.get_running_loop().call_later(AWAY_S, self._look)

    def _look(self) -> None:
        """Whose connection is closed, while a peer's collective failed, has not only lost its network for a moment."""
        live = self.course.state.live
        if live is None or not live.elastic or not live.well:
            return
        now = time.monotonic()
        if now - self._stumbled < STUMBLED_S:
            for place in self.course.places(live.number):
                self.workers.lose_if_away(place, now, AWAY_S)
