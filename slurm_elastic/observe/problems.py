"""What is not as it should be in a run, each with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from slurm_elastic.machine.state import Allocation, State
from slurm_elastic.units import format_duration

OVERDUE_S = 60.0  # a job that lives so long after its notice ran out was not preempted after all
STALLED_S = 60.0  # no step for so long, and for the time of STALLED_STEPS steps, is a problem
STALLED_STEPS = 20


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # closed set, see docs/cli.md
    problem: str
    hint: str = ""
    since: float | None = None  # Unix seconds


class Observed(Protocol):
    """The part of status.Figures that problems are seen in."""

    @property
    def now(self) -> float: ...
    @property
    def step_time(self) -> float: ...
    @property
    def steps_per_s(self) -> float: ...
    @property
    def refused_peers(self) -> dict[str, int]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


def problems_of(state: State, figures: Observed) -> tuple[Problem, ...]:
    """The gravest first. Of a run that is over only the failures that it ended with, and warnings."""
    warnings = tuple(Problem(kind="warning", problem=text) for text in figures.warnings)
    if state.over:
        failures = (each for each in _of_workers(state, figures) if each.kind == "worker_failed")
        return (*(failures if state.phase != "finished" else ()), *warnings)
    return (
        *_of_workers(state, figures),
        *_of_slurm(state, figures.now),
        *_of_companions(state, figures.now),
        *(problem for allocation in state.allocations for problem in _of_job(allocation, figures.now)),
        *_of_peers(figures),
        *warnings,
    )


def _of_workers(state: State, figures: Observed) -> Iterator[Problem]:
    if state.failures or state.phase == "failed":
        times = f"{state.failures} failures in a row without a new committed step; " if state.failures > 1 else ""
        yield Problem(
            kind="worker_failed",
            problem=f"{times}first failing worker: {state.first_failure or state.reason}",
            hint=f"the run gives up after {state.policy.max_restarts} restarts without progress (run.max_restarts)",
        )
    if state.phase == "waiting" and state.before:
        yield Problem(
            kind="waiting",
            problem=f"training pauses: {state.reason}",
            hint=f"it needs {state.policy.min_nodes} nodes (elastic.min_nodes)",
        )
    silent_s = figures.now - figures.step_time
    patience_s = max(STALLED_S, STALLED_STEPS / figures.steps_per_s if figures.steps_per_s else 0.0)
    if state.phase == "training" and figures.step_time and silent_s > patience_s:
        yield Problem(
            kind="stalled",
            problem=f"no step for {format_duration(silent_s)} though all workers give signs of life",
            hint="a blocked collective, an evaluation or a slow save; see the workers' logs",
            since=figures.step_time,
        )
    for suspect in state.suspects:
        yield Problem(
            kind="suspect_node",
            problem=f"{suspect.node} is not used until it has run a test step: {suspect.reason}",
            since=suspect.asked_at,
        )


def _of_slurm(state: State, now: float) -> Iterator[Problem]:
    since = state.slurm_silent_since
    if since is not None:
        yield Problem(
            kind="slurm_unknown",
            problem=f"Slurm has not answered for {format_duration(now - since)}: the state of the jobs is unknown",
            hint="nothing is decided from that; `scontrol ping` shows whether the controller is up",
            since=since,
        )


def _of_companions(state: State, now: float) -> Iterator[Problem]:
    if state.submit_blocked:
        yield Problem(
            kind="companion_refused",
            problem=f"Slurm will never accept a companion: {state.submit_blocked}",
            hint="correct elastic.qos, partition, time or base.sbatch in run.yaml in the run directory, which a"
            " supervisor reads when it starts: then `slurm-elastic stop RUN` and `slurm-elastic submit RUN`",
        )
    if state.never_joined:
        yield Problem(
            kind="never_joined",
            problem=f"{state.never_joined} companions ended before they reported",
            hint="taken back at once by the scheduler, or cut off from the supervisor: see logs/slurm-<job>.out",
        )
    grows = state.next is not None  # what warms up was decided before, or does not wait for the end of the pause
    if (state.snooze_until or 0.0) > now and not state.submit_blocked and not grows:
        left = format_duration((state.snooze_until or 0.0) - now)
        yield Problem(
            kind="back_off",
            problem=f"no growth for another {left}: the last one did not last, or companions failed to start",
            hint="elastic.scale_up_snooze_time is the first pause; `slurm-elastic scale` overrides it",
        )


def _of_job(allocation: Allocation, now: float) -> Iterator[Problem]:
    who = f"{allocation.role} job {allocation.job_id}"
    if allocation.suspended:
        yield Problem(kind="suspended", problem=f"{who} is suspended: its nodes count as lost until it resumes")
    elif allocation.contact == "silent":
        yield Problem(
            kind="silent",
            problem=f"{who} ({','.join(allocation.nodes)}) gives no sign of life",
            hint="its node, its network or its agent is down",
            since=allocation.silent_since,
        )
    if allocation.deadline is not None and now > allocation.deadline + OVERDUE_S and allocation.released_at is None:
        yield Problem(
            kind="preemption_overdue",
            problem=f"{who} was to be taken back {format_duration(now - allocation.deadline)} ago and still runs",
            hint="some Slurm controllers set PreemptTime and never kill the job; training goes on",
            since=allocation.deadline,
        )


def _of_peers(figures: Observed) -> Iterator[Problem]:
    if figures.refused_peers:
        most = sorted(figures.refused_peers.items(), key=lambda item: -item[1])[:5]
        yield Problem(
            kind="refused_peers",
            problem="refused connections from " + ", ".join(f"{peer} ({count})" for peer, count in most),
            hint="port scanners, or workers of another run; who does not know the run's token gets no further",
        )
