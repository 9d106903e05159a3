"""The time limits of the run's jobs, from Slurm's record: a limit that comes near is a notice like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_elastic.machine.events import Event, JobsSeen, NoticeReceived

MARGIN_S = 30.0  # agreeing on a boundary, publishing, ending the steps
SAVE_FACTOR = 1.5  # of the save's p95


@dataclass(slots=True)
class TimeLimits:
    """`poll_s`: how old Slurm's answer may be. End times can change while a job runs, so each answer counts anew."""

    post: Callable[[Event], None]
    poll_s: float
    _end_times: dict[int, float] = field(default_factory=dict)
    _told: dict[int, float] = field(default_factory=dict)

    def seen(self, answer: JobsSeen) -> None:
        """A job that is being preempted has an end time too, but that notice is the machine's own."""
        self._end_times = {
            job.job_id: job.end_time
            for job in answer.jobs
            if job.state == "RUNNING" and job.end_time is not None and job.preempt_time is None
        }

    def tick(self, now: float, save_p95_s: float) -> None:
        """Give notice once per job and end time, early enough to save and leave."""
        lead_s = SAVE_FACTOR * save_p95_s + MARGIN_S + self.poll_s
        for job_id, end_time in self._end_times.items():
            if end_time - now <= lead_s and self._told.get(job_id) != end_time:
                self._told[job_id] = end_time
                self.post(NoticeReceived(job_id=job_id, source="time limit", deadline=end_time))
