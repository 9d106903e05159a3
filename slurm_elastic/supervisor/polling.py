"""One question to Slurm for all jobs of the run, every `control.poll` seconds, sooner after a notice or a loss."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slurm_elastic.errors import SlurmError
from slurm_elastic.machine.events import Event, JobRecord, JobsSeen, SlurmSilent
from slurm_elastic.slurm.api import Job

log = logging.getLogger(__name__)

SOONEST_S = 2.0  # between two questions, whatever happens
BURST = 8  # questions asked out of turn that may follow each other before the normal pace is kept


@dataclass(slots=True)
class Poller:
    """`ask` does the one query (off the loop's thread); `post` takes the answer. `poke` asks for it sooner."""

    ask: Callable[[], Awaitable[tuple[Job, ...]]]
    post: Callable[[Event], None]
    every_s: float
    _poked: asyncio.Event
    _credit: float = BURST

    @classmethod
    def create(
        cls, ask: Callable[[], Awaitable[tuple[Job, ...]]], post: Callable[[Event], None], every_s: float
    ) -> Poller:
        return cls(ask, post, every_s, asyncio.Event())

    def poke(self) -> None:
        """Something happened that Slurm may explain: do not wait for the next turn."""
        self._poked.set()

    async def run(self) -> None:
        """Until cancelled. A failed or empty answer is "unknown", never "gone"."""
        while True:
            self._poked.clear()
            await self.once()
            await asyncio.sleep(SOONEST_S)
            await self._next_turn()

    async def once(self) -> None:
        try:
            jobs = await self.ask()
        except SlurmError as silent:
            self.post(SlurmSilent(reason=silent.problem))
            return
        self.post(JobsSeen(jobs=tuple(record_of(job) for job in jobs)))

    async def _next_turn(self) -> None:
        """Wait for the turn, or for a poke while there is credit; credit comes back with every quiet turn."""
        turn_s = max(0.0, self.every_s * random.uniform(1.0, 1.2) - SOONEST_S)
        if self._credit < 1:
            await asyncio.sleep(turn_s)
            self._credit += 1
            return
        try:
            async with asyncio.timeout(turn_s):
                await self._poked.wait()
            self._credit -= 1
        except TimeoutError:
            self._credit = min(BURST, self._credit + 1)


def record_of(job: Job) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        state=job.state,
        nodes=job.nodes,
        reason=job.reason,
        preempt_time=job.preempt_time,
        end_time=job.end_time,
        token=job.comment,
    )
