"""How far training is, how fast, and when a new generation has made its first step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurm_elastic.machine.events import Event, GenerationStepping
from slurm_elastic.supervisor.gates import GatePlan
from slurm_elastic.supervisor.seats import RegroupPlan
from slurm_elastic.wire import messages as m

LEVEL0_GRACE_S = 20.0  # a script that has not reached the library by then is taken for an unmodified one
SILENT_GRACE_S = 60.0  # a script that reached the library but reports no steps has a loop of its own
RATE_OVER = 32  # steps


@dataclass(slots=True)
class Progress:
    """Times are Unix seconds; `step` is the last committed one, of whatever generation."""

    post: Callable[[Event], None]
    generation: int = 0
    step: int = 0
    step_time: float = 0.0
    total_steps: int = 0
    epoch_of_data: float = 0.0
    loss: float | None = None
    lr: float | None = None
    opened: float = 0.0
    _stepping: bool = True  # this generation's first step was reported
    _before: tuple[int, float] = (0, 0.0)  # step and time of the last one of the generation before
    _live: bool = False  # made by a regroup: its script reports steps
    _due: GenerationStepping | None = None  # held back until the regroup is complete
    _held: bool = False
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RATE_OVER))

    @property
    def last(self) -> tuple[int, float]:
        """The last committed step, and when."""
        return self.step, self.step_time

    def gate_opened(self, generation: int, resume_step: int, now: float) -> None:
        """Workers of `generation` go on after `resume_step`. What was done beyond it will be done again."""
        self._before = self.last
        self.generation = generation
        self.step = resume_step
        self.opened = now
        self._stepping = self._live = self._held = False
        self._recent.clear()

    def regrouped(self, generation: int, step: int, now: float) -> None:
        """The rank 0 of `generation` goes on after `step`; the others may still be on their way: see `release`."""
        self.gate_opened(generation, step, now)
        self._live = self._held = True
        self._due = None

    def past(self, steps: Sequence[m.StepDone]) -> None:
        """Steps of the generation before, told after this one has begun."""
        for done in steps:
            if done.step > self._before[0]:
                self._before = (done.step, done.time or self._before[1])

    def release(self) -> None:
        """All workers of the generation are in their places."""
        self._held = False
        due, self._due = self._due, None
        if due is not None:
            self.post(due)

    def resumed_live(self, plan: RegroupPlan, in_ledger: tuple[int, float], *, complete: bool) -> None:
        """The same in a generation that was made by a regroup. `complete`: all its workers had said so."""
        self.step, self.step_time = in_ledger
        if plan.begun:
            self.generation, self.opened = plan.generation, plan.opened
            self._before = (plan.before_step, plan.before_time)
            self._stepping, self._live, self._held = False, True, not complete

    def resumed(self, plan: GatePlan, in_ledger: tuple[int, float]) -> None:
        """After a restart of the supervisor, in the middle of a generation, whose first step may still be due.

        `in_ledger`: step and time of the last one there.
        """
        self.generation = plan.generation
        self.opened = plan.opened
        self.step, self.step_time = max(in_ledger[0], plan.resume_step), in_ledger[1]
        self._before = (plan.before_step, plan.before_time)
        self._stepping = False

    def steps(self, told: m.Steps, now: float) -> Sequence[m.StepDone]:
        """Those of the message that are new (a message may come twice after a reconnect)."""
        fresh = [done for done in told.steps if done.step > self.step]
        self.total_steps = told.total_steps or self.total_steps
        self.epoch_of_data = max(self.epoch_of_data, told.epoch_of_data)
        if not fresh:
            return fresh
        first, last = fresh[0], fresh[-1]
        self._first_step(first.step, first.time or now)
        self.step, self.step_time = last.step, last.time or now
        self.loss, self.lr = last.loss, last.lr
        self._recent.extend((done.step, done.time or now) for done in fresh)
        return fresh

    def tick(self, now: float, trained: bool) -> None:
        """A script that reports no steps is taken to be training some time after its gate was opened."""
        grace_s = SILENT_GRACE_S if trained else LEVEL0_GRACE_S
        if self.opened and not self._live and now - self.opened > grace_s:
            self._first_step(self.step, now - grace_s)

    @property
    def steps_per_s(self) -> float:
        """Over the last steps of this generation; 0 when unknown."""
        if len(self._recent) < 2:
            return 0.0
        (first, since), (last, until) = self._recent[0], self._recent[-1]
        return (last - first) / (until - since) if until > since else 0.0

    def _first_step(self, step: int, time: float) -> None:
        if self._stepping:
            return
        self._stepping = True
        before, before_time = self._before
        done = GenerationStepping(
            generation=self.generation,
            step=step,
            stall_s=max(0.0, time - before_time) if before_time else 0.0,
            steps_lost=max(0, before - max(0, step - 1)),
        )
        if self._held:
            self._due = done
        else:
            self.post(done)
