"""Carries the machine's orders out. Nothing here decides; nothing here blocks; every order may come twice."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from slurm_elastic.machine import actions as a
from slurm_elastic.supervisor.agents import Agents
from slurm_elastic.supervisor.companions import Companions
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.desk import TrainingDesk
from slurm_elastic.supervisor.workers import Workers
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """The run is over. `kind`: finished, stopped or failed. `requeue`: the base job comes back if it is preempted."""

    kind: str
    reason: str
    exit_code: int
    requeue: bool = False


@dataclass(slots=True)
class Effects:
    """`spawn` runs a coroutine beside the loop; `note` writes an event. `ending` is set by the last order of a run."""

    course: Course
    agents: Agents
    workers: Workers
    companions: Companions
    desk: TrainingDesk
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    note: Callable[..., None]
    ending: Ending | None = None

    def carry_out(self, actions: Iterable[a.Action]) -> None:
        for action in actions:
            log.info("order %s", action)
            self._carry_out(action)

    def _carry_out(self, action: a.Action) -> None:
        match action:
            case a.SubmitCompanion():
                self.spawn(self.companions.submit(action))
            case a.CancelJob():
                self.agents.forget(action.job_id)
                self.spawn(self.companions.cancel(action))
            case a.LaunchWorkers():
                self._launch(action)
            case a.OpenGate():
                self.spawn(self.desk.open_gate(action))
            case a.Regroup():
                self.desk.regroups.order(action)
            case a.DrainWorkers():
                self._drain(action)
            case a.KillWorkers():
                self._kill(action)
            case a.ProbeNode():
                self._tell(action.job_id, m.Probe(epoch=self.course.epoch, node=action.node))
            case a.ReleaseAllocation():
                self._release(action)
            case a.RecordTransition():
                self._record(action)
            case a.Finish():
                self.ending = Ending("finished", action.reason, 0)
            case a.Stop():
                self.ending = Ending("stopped", action.reason, 0, action.requeue)
            case a.GiveUp():
                self.ending = Ending("failed", action.reason, 1)
            case _:
                assert_never(action)

    def _launch(self, order: a.LaunchWorkers) -> None:
        nodes_of: dict[int, list[str]] = defaultdict(list)
        for member in order.members:
            nodes_of[member.job_id].append(member.node)
        self.workers.launched(order.generation, [member.node for member in order.members])
        for job_id, nodes in nodes_of.items():
            launch = m.Launch(epoch=self.course.epoch, generation=order.generation, nodes=tuple(nodes))
            self._tell(job_id, launch)

    def _drain(self, order: a.DrainWorkers) -> None:
        """Level 0 has no boundary to agree on, nor has a script that only starts: such workers are ended."""
        if not self.desk.begin_drain(order):
            self.workers.killed_to_drain(order.generation)
            self._tell_all(m.Kill(epoch=self.course.epoch, generation=order.generation, reason=order.reason))

    def _kill(self, order: a.KillWorkers) -> None:
        reason = order.reason or "ended by the supervisor"
        self.workers.fence(order.generation, order.nodes, reason, alone=order.alone)
        kill = m.Kill(
            epoch=self.course.epoch,
            generation=order.generation,
            nodes=order.nodes,
            reason=reason,
            alone=order.alone,
        )
        self._tell_all(kill, order.nodes)

    def _release(self, order: a.ReleaseAllocation) -> None:
        """Through its agent, which ends its workers first. A job without an agent can only be cancelled."""
        if self.agents.is_there(order.job_id):
            self._tell(order.job_id, m.Release(epoch=self.course.epoch, reason=order.reason))
            self.agents.forget(order.job_id)
        elif order.job_id != self.course.base_job_id:
            self._carry_out(a.CancelJob(job_id=order.job_id, reason=order.reason))

    def _record(self, order: a.RecordTransition) -> None:
        live = self.desk.regroups.figures(order.generation) if order.mode == "live" else {}
        self.note(
            "transition",
            order.generation,
            order.reason,
            transition=order.kind,
            mode=order.mode,
            from_workers=order.from_workers,
            to_workers=order.to_workers,
            stall_s=round(order.stall_s, 3),
            steps_lost=order.steps_lost,
            planned=order.planned,
            **live,
        )

    def _tell(self, job_id: int, message: m.Message) -> None:
        self.agents.send(job_id, message, time.monotonic())

    def _tell_all(self, message: m.Message, nodes: Iterable[str] = ()) -> None:
        for job_id in self.agents.with_nodes(nodes):
            self._tell(job_id, message)
