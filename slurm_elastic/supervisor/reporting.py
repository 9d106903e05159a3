"""What people see of the supervisor: events.jsonl and status.json. A full disk here stops nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_elastic.machine.actions import RecordTransition
from slurm_elastic.machine.events import (
    CompanionRefused,
    Event,
    NodeEnded,
    ScaleRequested,
    StopRequested,
    SupervisorStarted,
    WorkerLost,
    WorkersStayed,
)
from slurm_elastic.machine.state import Allocation, Generation, State
from slurm_elastic.observe.events import EventLog, read_events
from slurm_elastic.observe.status import CheckpointStatus, Figures, SupervisorStatus, status_of, write_status
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.course import Course

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notes:
    """Writes one event. Called as `note(kind, generation, reason, **figures)`."""

    events: EventLog

    def __call__(self, kind: str, generation: int, reason: str = "", **figures: Any) -> None:
        try:
            self.events.append(kind, generation, reason, **figures)
        except OSError as broken:
            log.error("event not written kind=%s problem=%s", kind, broken)


@dataclass(frozen=True, slots=True)
class Training:
    """How far training is, for the status."""

    step: int
    total_steps: int
    step_time: float
    steps_per_s: float
    epoch_of_data: float
    loss: float | None
    lr: float | None
    checkpoint: CheckpointStatus | None
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Reporter:
    """`training` and `refusals` are asked once a second."""

    run: RunDirectory
    name: str
    course: Course
    place: SupervisorStatus
    note: Callable[..., None]
    training: Callable[[], Training]
    refusals: Callable[[], Mapping[str, int]]
    transition_at: float | None = None
    _writing: bool = False

    def happened(self, fact: Event, before: State, after: State) -> None:
        """Events for what a person would want to know; most facts are not that."""
        self._tell_fact(fact, before)
        if after is before:
            return
        if after.last_transition is not before.last_transition:
            self.transition_at = time.time()
        if after.next is not None and (before.next is None or before.next.number != after.next.number):
            figures = {"nodes": after.next.nodes, "standby": after.next.standby}
            self.note("launching", after.next.number, after.next.reason, **figures)
        if (
            after.live is not None
            and after.live.live
            and (before.live is None or before.live.number < after.live.number)
        ):
            self._tell_regroup(after.live)
        if (before.slurm_silent_since is None) != (after.slurm_silent_since is None):
            silent = after.slurm_silent_since is not None
            self.note("slurm_silent" if silent else "slurm_answers", after.generation)
        for allocation in after.allocations:
            self._tell_job(before.allocation(allocation.job_id), allocation, after.generation)
        for allocation in before.allocations:
            if after.allocation(allocation.job_id) is None:
                self.note("job_gone", after.generation, job_id=allocation.job_id, nodes=allocation.nodes)

    async def write_status(self) -> None:
        """Replace status.json; does nothing while an earlier writing still hangs (a slow file system)."""
        if self._writing:
            return
        self._writing = True
        try:
            status = status_of(self.course.state, self._figures())
            await asyncio.to_thread(write_status, self.run.status, status)
        except OSError as broken:
            log.error("status not written problem=%s", broken)
        finally:
            self._writing = False

    def _figures(self) -> Figures:
        now = time.time()
        seen = self.training()
        return Figures(
            run=self.name,
            run_dir=str(self.run.path),
            now=now,
            supervisor=SupervisorStatus(
                epoch=self.place.epoch,
                host=self.place.host,
                pid=self.place.pid,
                time=now,
                started_at=self.place.started_at,
            ),
            step=seen.step,
            total_steps=seen.total_steps,
            step_time=seen.step_time,
            steps_per_s=seen.steps_per_s,
            epoch_of_data=seen.epoch_of_data,
            loss=seen.loss,
            lr=seen.lr,
            checkpoint=seen.checkpoint,
            last_transition_at=self.transition_at,
            refused_peers=dict(self.refusals()),
            warnings=seen.warnings,
        )

    def _tell_fact(self, fact: Event, before: State) -> None:
        generation = before.generation
        match fact:
            case SupervisorStarted():
                self.note(
                    "supervisor_started",
                    generation,
                    epoch=fact.epoch,
                    base_job_id=fact.base_job_id,
                    restart_count=fact.restart_count,
                    resume_step=fact.resume_step,
                )
            case NodeEnded() if not fact.said and (fact.exit_code or fact.signal) and _is_news(before, fact):
                figures = {"node": fact.node, "exit_code": fact.exit_code, "signal": fact.signal}
                self.note("worker_failed", fact.generation, fact.detail, **figures)
            case WorkerLost():
                self.note("worker_lost", fact.generation, fact.reason, node=fact.node)
            case WorkersStayed():
                self.note("stayed", fact.generation, fact.reason)
            case CompanionRefused() if not before.submit_blocked:  # of several asked for at once, one says it all
                self.note("companion_refused", generation, fact.reason, permanent=fact.permanent)
            case ScaleRequested():
                self.note("scale_requested", generation, nodes=fact.nodes)
            case StopRequested():
                self.note("stop_requested", generation, fact.reason)
            case _:
                pass

    def _tell_regroup(self, made: Generation) -> None:
        departing = tuple(member.node for member in made.departing)
        figures = {"nodes": made.nodes, "departing": departing, "planned": made.planned}
        self.note("regrouping", made.number, made.reason, **figures)

    def _tell_job(self, before: Allocation | None, after: Allocation, generation: int) -> None:
        job: dict[str, Any] = {"job_id": after.job_id, "role": after.role, "nodes": after.nodes}
        if before is None and after.joined_at is None:
            self.note("job_submitted", generation, job_id=after.job_id, role=after.role)
        if (before is None or before.joined_at is None) and after.joined_at is not None:
            self.note("job_joined", generation, qos=after.qos, **job)
        if before is None:
            return
        if before.noticed_at is None and after.noticed_at is not None:
            self.note("notice", generation, after.notice, deadline=after.deadline, **job)
        if before.contact != "silent" and after.contact == "silent":
            self.note("job_silent", generation, **job)
        if before.contact == "silent" and after.contact == "joined":
            self.note("job_back", generation, **job)
        if before.suspended != after.suspended:
            self.note("job_suspended" if after.suspended else "job_resumed", generation, **job)


def told_at(events: Path, done: RecordTransition) -> float | None:
    """When people were told of this transition; None: its decider died between the journal and the event."""
    found = None
    try:
        for event in read_events(events):
            if event.kind == "transition" and event.generation == done.generation:
                found = event.time if event.figures.get("transition") == done.kind else found
    except OSError as broken:
        log.error("unknown which transitions were told problem=%s", broken)
        return time.time()
    return found


def _is_news(state: State, end: NodeEnded) -> bool:
    """Whether these workers ended without having been told to, by us or by Slurm, which takes their nodes."""
    by_signal = end.signal != 0 or end.exit_code >= 128
    if by_signal and any(a.leaving and a.holds(end.generation, end.node) for a in state.allocations):
        return False
    found = next((g for g in (state.live, state.next) if g is not None and g.has(end.generation, end.node)), None)
    if found is None and state.live is not None and state.live.live:  # lost, and its end is heard of later
        return not end.signal and end.exit_code < 128
    if found is None or found.killed_at is not None:
        return False
    return found.drain_at is None or state.best_step > 0  # level 0 is drained by a signal
