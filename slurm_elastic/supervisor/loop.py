"""The supervisor's loop: a fact arrives, the machine decides, the journal has it, then it is carried out."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from slurm_elastic.errors import Superseded
from slurm_elastic.machine.events import AgentLost, Event, JobsSeen, SupervisorStarted, TimePassed, WorkerLost
from slurm_elastic.machine.step import step
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.clock import SteadyClock
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.crew import Crew
from slurm_elastic.supervisor.desk import TrainingDesk
from slurm_elastic.supervisor.effects import Effects
from slurm_elastic.supervisor.ending import End
from slurm_elastic.supervisor.journal import Journal
from slurm_elastic.supervisor.lease import Lease
from slurm_elastic.supervisor.limits import TimeLimits
from slurm_elastic.supervisor.polling import Poller
from slurm_elastic.supervisor.reporting import Reporter
from slurm_elastic.supervisor.requests import waiting_requests
from slurm_elastic.supervisor.roster import Roster

log = logging.getLogger(__name__)

TICK_S = 1.0
SLICE_S = 0.005
CRASHED = 1


@dataclass(slots=True)
class Loop:
    """All parts, wired. `run` once."""

    run_dir: RunDirectory
    course: Course
    journal: Journal
    lease: Lease
    crew: Crew
    roster: Roster
    desk: TrainingDesk
    effects: Effects
    poller: Poller
    limits: TimeLimits
    reporter: Reporter
    end: End
    clock: SteadyClock = field(default_factory=SteadyClock)

    async def run(self, started: SupervisorStarted) -> int:
        """Until the run is over; the exit code. Non-zero also means: start me again, but for Superseded's own code."""
        try:
            self.course.post(started)
            self.crew.spawn(self.poller.run())
            self.crew.spawn(self._tick())
            await self.crew.run(self._drive())
        except Superseded as newer:
            log.warning("stop: %s", newer.problem)
            return newer.exit_code
        except Exception:
            log.exception("the supervisor failed; the keeper starts it again")
            return CRASHED
        finally:
            await self.crew.dismiss()
        return 0

    async def _drive(self) -> None:
        """A queue that is not empty gives without waiting: after SLICE_S of facts the workers have their turn."""
        pause_at = time.monotonic() + SLICE_S
        while self.effects.ending is None:
            self._take(await self.course.facts.get())
            if time.monotonic() >= pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + SLICE_S
        await self.desk.records.settled()  # a run that is DONE has its last checkpoint public
        await self.end.carry_out(self.effects.ending)

    def _take(self, fact: Event) -> None:
        """Journal first: after a crash the orders are given again, never forgotten."""
        now = self.clock()
        state, actions = step(self.course.state, fact, now)
        changed = state is not self.course.state
        if actions or changed:
            self.lease.check()
            self.journal.append(now, fact, actions, state.reason, changed=changed)
        before, self.course.state = self.course.state, state
        self.reporter.happened(fact, before, state)
        if isinstance(fact, JobsSeen):
            self.limits.seen(fact)
        if isinstance(fact, AgentLost | WorkerLost):
            self.poller.poke()
        self.effects.carry_out(actions)

    async def _tick(self) -> None:
        """Once a second, whatever else happens."""
        while True:
            self.lease.check()
            self.roster.tick(time.monotonic())
            self.desk.note_attendance()
            now = self.clock()
            live = self.course.state.live
            self.desk.progress.tick(now, trained=live is not None and self.desk.has_trained(live.number))
            self.limits.tick(now, self.desk.save_p95_s)
            for path, fact in waiting_requests(self.run_dir.requests):
                path.unlink(missing_ok=True)
                self.course.post(fact)
            self.course.post(TimePassed())
            self.crew.spawn(self.reporter.write_status())
            await asyncio.sleep(TICK_S)
