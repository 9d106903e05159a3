"""The end of a run: DONE first, then nothing of it is left behind, and the base job goes last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slurm_elastic.errors import SlurmError, SlurmUnknown
from slurm_elastic.machine.actions import CancelJob
from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.slurm.api import Job
from slurm_elastic.slurm.states import Meaning, meaning
from slurm_elastic.supervisor.agents import Agents
from slurm_elastic.supervisor.companions import Companions
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.effects import Ending
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

LEAVE_S = 20.0  # agents may take this long to end their steps and go before their jobs are cancelled
EMPTY_S = 120.0  # Slurm may take this long to have ended everything; then the base job ends all the same
FIRST_LOOK_S, LOOK_S = 0.3, 2.0  # the first ones soon: agents leave within a second
REJOIN_S = 15.0


@dataclass(slots=True)
class End:
    """`ask` is the one query for all jobs of the run; `requeue` gives the job with this id back to the queue."""

    run: RunDirectory
    course: Course
    agents: Agents
    companions: Companions
    ask: Callable[[], Awaitable[tuple[Job, ...]]]
    note: Callable[..., None]
    last_words: Callable[[], Awaitable[None]]
    requeue: Callable[[int], Awaitable[None]]

    async def carry_out(self, ending: Ending) -> None:
        """Repeatable: a supervisor that died in here starts over."""
        if ending.kind == "finished":
            replace_json(self.run.done, {"time": time.time(), "reason": ending.reason})
        self.note(ending.kind, self.course.state.generation, ending.reason)
        await self._empty(ending)
        await self.last_words()
        if ending.requeue:
            await self._requeue_if_preempted()
        await self._release_base(ending)
        log.info("the run is over kind=%s reason=%s", ending.kind, ending.reason)

    async def _empty(self, ending: Ending) -> None:
        """No companion is left: agents are asked, then jobs are cancelled, pending ones at once."""
        start = time.monotonic()
        asked: set[int] = set()
        pause_s = FIRST_LOOK_S
        while time.monotonic() - start < EMPTY_S:
            for job_id in self.agents.connected("companion"):
                if job_id not in asked:
                    asked.add(job_id)
                    self._release(job_id, ending)
            try:
                left = [job for job in await self.ask() if self._is_left(job)]
            except SlurmError as silent:
                log.warning("unknown what is left of the run: %s", silent.problem)
                left = None
            if left == []:
                return
            for job in left or []:
                leaving = job.job_id in asked and time.monotonic() - start < LEAVE_S
                if not leaving and job.state != "COMPLETING":
                    await self.companions.cancel(CancelJob(job_id=job.job_id, reason=ending.reason))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
        log.error("jobs of this run may be left: Slurm did not end them within %g s", EMPTY_S)

    def _is_left(self, job: Job) -> bool:
        return job.job_id != self.course.base_job_id and meaning(job.state, requeue=job.requeue) is not Meaning.OVER

    async def _requeue_if_preempted(self) -> None:
        """A job that leaves before its grace time is over would be completed, and never come back (Slurm < 24.05).

        While Slurm is silent we stay: it requeues the job itself when it ends it.
        """
        base_job_id = self.course.base_job_id
        while True:
            try:
                found = [job for job in await self.ask() if job.job_id == base_job_id]
                if not any(job.requeue and job.preempt_time and job.state == "RUNNING" for job in found):
                    return
                await self.requeue(base_job_id)
            except SlurmUnknown as silent:
                log.warning("unknown whether the base job is preempted: %s", silent.problem)
                await asyncio.sleep(LOOK_S)
                continue
            except SlurmError as refused:
                log.warning("the base job is not requeued: %s", refused.problem)
                return
            self.note("requeued", self.course.state.generation, "Slurm preempts the base job", job_id=base_job_id)
            return

    async def _release_base(self, ending: Ending) -> None:
        """The base job's own agent ends the job, and us with it."""
        deadline = time.monotonic() + REJOIN_S
        told: set[int] = set()
        while time.monotonic() < deadline:
            here = set(self.agents.connected("base"))
            if told and not here:
                return
            for job_id in here - told:
                self._release(job_id, ending)
                told.add(job_id)
            await asyncio.sleep(0.1)

    def _release(self, job_id: int, ending: Ending) -> None:
        release = m.Release(epoch=self.course.epoch, reason=ending.reason, final=True, exit_code=ending.exit_code)
        self.agents.send(job_id, release, time.monotonic())
        self.agents.forget(job_id)
