"""Puts a supervisor together and runs it once. The parts know each other only through what they are given here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slurm_elastic.checkpoint.publish import newest
from slurm_elastic.config_model import RunConfig
from slurm_elastic.machine.actions import SubmitCompanion
from slurm_elastic.machine.events import SupervisorStarted
from slurm_elastic.machine.policy import policy_of
from slurm_elastic.observe.events import EventLog
from slurm_elastic.observe.ledger import Ledger
from slurm_elastic.observe.status import CheckpointStatus, SupervisorStatus
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.api import BatchRequest, Job, SlurmClient
from slurm_elastic.slurm.run_jobs import comment_prefix, companion_request
from slurm_elastic.supervisor import seats
from slurm_elastic.supervisor.agents import Agents
from slurm_elastic.supervisor.companions import Companions
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.crew import Crew
from slurm_elastic.supervisor.desk import LastCheckpoint, TrainingDesk
from slurm_elastic.supervisor.effects import Effects
from slurm_elastic.supervisor.ending import End
from slurm_elastic.supervisor.gates import load_plan
from slurm_elastic.supervisor.journal import Journal, read, replay
from slurm_elastic.supervisor.lease import Claimant, Lease, claim
from slurm_elastic.supervisor.limits import TimeLimits
from slurm_elastic.supervisor.loop import Loop
from slurm_elastic.supervisor.polling import Poller
from slurm_elastic.supervisor.progress import Progress
from slurm_elastic.supervisor.records import Records
from slurm_elastic.supervisor.regroups import Regroups
from slurm_elastic.supervisor.reporting import Notes, Reporter, Training, told_at
from slurm_elastic.supervisor.roster import Roster
from slurm_elastic.supervisor.workers import Workers
from slurm_elastic.wire.server import WireServer

log = logging.getLogger(__name__)

SLURM_THREADS = 4
REJOIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a supervisor is started with. `host` is the address it listens on."""

    run: RunDirectory
    config: RunConfig
    slurm: SlurmClient
    claimant: Claimant
    host: str
    settings_problem: str = ""  # what is wrong with run.yaml, when `config` is that of before
    request_for: Callable[[SubmitCompanion], BatchRequest] | None = None  # tests put their own here


async def supervise(around: Surroundings) -> int:
    """One life of the supervisor; its exit code. Raises Superseded when another one has the run."""
    lease = claim(around.run, around.claimant)
    policy = policy_of(around.config)
    state = replay(policy, read(around.run.journal))
    journal = Journal(around.run.journal)
    journal.note_policy(time.time(), policy)
    who = around.claimant
    course = Course(state, lease.epoch, who.job_id, who.restart_count)
    threads = ThreadPoolExecutor(SLURM_THREADS, "slurm")
    parts = _Parts(around, course, lease, journal, threads)
    server = await WireServer.start(around.host, around.run.read_token(), parts.roster)
    try:
        lease.publish(server.host, server.port)
        log.info("supervisor epoch=%d host=%s port=%d", lease.epoch, server.host, server.port)
        loop = parts.loop(server)
        return await loop.run(parts.started())
    finally:
        await server.close()
        await parts.records.close()
        journal.close()
        threads.shutdown(wait=False, cancel_futures=True)


class _Parts:
    """The parts of one supervisor, made in the order in which they need each other."""

    def __init__(
        self, around: Surroundings, course: Course, lease: Lease, journal: Journal, threads: ThreadPoolExecutor
    ) -> None:
        run, config, control = around.run, around.config, around.config.control
        self.around, self.course, self.lease, self.journal, self.threads = around, course, lease, journal, threads
        self.crew = Crew()
        self.note = Notes(EventLog(run.events))
        self.workers = Workers(course.post, course.workers_per_node, control.worker_timeout)
        self.agents = Agents(course.post, control.agent_timeout)
        checkpoints = Path(config.checkpoint.dir) if config.checkpoint.dir else run.checkpoints
        self.checkpoints = checkpoints
        self.ledger = Ledger(run.ledger)
        self.records = Records(self.ledger, checkpoints, config.checkpoint.keep, lease, self._warn)
        self.desk = self._desk()
        request_for = around.request_for or partial(_companion, config, run, course.base_job_id)
        self.companions = Companions(around.slurm, request_for, course.post, self._in_thread)
        self.effects = Effects(
            course, self.agents, self.workers, self.companions, self.desk, self.crew.spawn, self.note
        )
        self.poller = Poller.create(self._ask, course.post, control.poll)
        self.roster = Roster(
            course, self.agents, self.workers, self.desk, self.poller.poke, heartbeat_s=control.heartbeat
        )

    def loop(self, server: WireServer) -> Loop:
        run, course = self.around.run, self.course
        place = SupervisorStatus(
            epoch=self.lease.epoch, host=server.host, pid=os.getpid(), time=time.time(), started_at=time.time()
        )
        reporter = Reporter(
            run, self.around.config.run.name, course, place, self.note, self._training, lambda: server.refusals
        )
        if self.around.settings_problem:
            self.desk.warned("run.yaml", self.around.settings_problem)
        reporter.transition_at = self._transition_at()
        return Loop(
            run_dir=run,
            course=course,
            journal=self.journal,
            lease=self.lease,
            crew=self.crew,
            roster=self.roster,
            desk=self.desk,
            effects=self.effects,
            poller=self.poller,
            limits=TimeLimits(course.post, self.around.config.control.poll),
            reporter=reporter,
            end=End(
                run, course, self.agents, self.companions, self._ask, self.note, reporter.write_status, self._requeue
            ),
        )

    def _transition_at(self) -> float | None:
        """When the last one was told of; the supervisor before us may have died before that."""
        last = self.course.state.last_transition
        if last is None:
            return None
        if (at := told_at(self.around.run.events, last)) is None:
            self.effects.carry_out([last])
        return time.time() if at is None else at

    def started(self) -> SupervisorStarted:
        found = newest(self.checkpoints, thorough=False, mark_bad=False).checkpoint
        if found is not None:
            self.desk.last_checkpoint = LastCheckpoint(found.step, found.path.stat().st_mtime, found.name)
        who = self.around.claimant
        return SupervisorStarted(
            epoch=self.lease.epoch,
            base_job_id=who.job_id,
            restart_count=who.restart_count,
            resume_step=found.step if found else 0,
            rejoin_s=self.rejoin_s,
        )

    @property
    def rejoin_s(self) -> float:
        """How long after our start the silence of those we knew means nothing."""
        return max(REJOIN_S, self.around.config.control.agent_timeout)

    def _desk(self) -> TrainingDesk:
        """With what was known of training before a restart."""
        run, course = self.around.run, self.course
        progress = Progress(course.post)
        regroups = Regroups(run, course, self.workers, self.records, progress, self.crew.spawn, seats.load_plan(run))
        must_be_live = self.around.config.elastic.transition == "live"
        spawn = self.crew.spawn
        desk = TrainingDesk(
            run, course, self.workers, self.records, progress, regroups, spawn, self.note, must_be_live=must_be_live
        )
        last, plan = self.ledger.last, load_plan(run)
        if last is not None:
            progress.step, progress.step_time, progress.loss, progress.lr = last.step, last.time, last.loss, last.lr
        if plan is not None:
            desk.plan = plan
            if course.is_live(plan.generation):
                progress.resumed(plan, (last.step, last.time) if last else (0, 0.0))
                if plan.joined:
                    self._expect_workers()
        live = course.state.live
        if live is not None and live.live:
            if regroups.plan is not None and regroups.plan.generation == live.number:
                in_ledger = (last.step, last.time) if last else (0, 0.0)
                progress.resumed_live(regroups.plan, in_ledger, complete=not live.regrouping)
            self._expect_workers()
        return desk

    def _expect_workers(self) -> None:
        """Those that trained owe a sign of life, but not at once."""
        live = self.course.state.live
        if live is not None and live.killed_at is None:
            grace_s = max(0.0, self.rejoin_s - self.around.config.control.worker_timeout)
            for member in live.members:
                if live.end_of(member.node) is None:
                    self.workers.expect(live.launch_of(member), (member.node,), time.monotonic() + grace_s)

    def _training(self) -> Training:
        progress, checkpoint = self.desk.progress, self.desk.last_checkpoint
        return Training(
            step=progress.step,
            total_steps=progress.total_steps,
            step_time=progress.step_time,
            steps_per_s=progress.steps_per_s,
            epoch_of_data=progress.epoch_of_data,
            loss=progress.loss,
            lr=progress.lr,
            checkpoint=CheckpointStatus(step=checkpoint.step, time=checkpoint.time, name=checkpoint.name)
            if checkpoint.name
            else None,
            warnings=tuple(f"{who}: {text}" for who, text in self.desk.warnings.items()),
        )

    def _warn(self, text: str) -> None:
        self.desk.warned("checkpoint", text)

    def _in_thread(self, call: Callable[..., Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def _ask(self) -> tuple[Job, ...]:
        """The one query: all jobs of this run, and the base job even if it was submitted by hand."""
        prefix = comment_prefix(self.around.run)
        base = [self.course.base_job_id] if self.course.base_job_id else []
        found: tuple[Job, ...] = await self._in_thread(lambda: self.around.slurm.jobs(base, token_prefix=prefix))
        return found

    async def _requeue(self, job_id: int) -> None:
        await self._in_thread(lambda: self.around.slurm.requeue(job_id))


def _companion(config: RunConfig, run: RunDirectory, base_job_id: int, order: SubmitCompanion) -> BatchRequest:
    return companion_request(config, run, base_job_id, order.nodes, order.token)
