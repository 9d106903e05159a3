"""What a person should look at, each with a hint. Computed from the state for `status`; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.machine.state import State

OVERSTAY_S = 60.0
UNKNOWN_GRACE_S = 120.0


def problems(state: State, now: float) -> tuple[str, ...]:
    return tuple(_problems(state, now))


def _problems(state: State, now: float) -> Iterator[str]:
    if state.slurm_silent_since is not None:
        yield f"Slurm has not answered for {now - state.slurm_silent_since:.0f} s; no decision is taken about jobs"
    if state.submit_blocked:
        yield (
            f"Slurm will not accept a companion job: {state.submit_blocked}; "
            "fix elastic.* in run.yaml, or ask again with `slurm-elastic scale`"
        )
    if state.never_joined:
        yield f"{state.never_joined} companion jobs ended before they joined; see logs/slurm-<job>.out"
    if state.failures:
        words = f": {state.first_failure}" if state.first_failure else ""
        yield f"{state.failures} failures in a row without progress, {state.policy.max_restarts} are allowed{words}"
    for allocation in state.allocations:
        if allocation.noticed_at is not None:
            end = allocation.noticed_at + UNKNOWN_GRACE_S if allocation.deadline is None else allocation.deadline
            if now > end + OVERSTAY_S:
                yield (
                    f"job {allocation.job_id} was to be taken away ({allocation.notice}) but still runs; "
                    "training goes on without it"
                )
        if allocation.suspended:
            yield f"job {allocation.job_id} is suspended; its nodes count as lost until it resumes"
        if allocation.contact == "silent":
            yield f"the agent of job {allocation.job_id} on {', '.join(allocation.nodes) or 'no node'} is silent"
    for suspect in state.suspects:
        yield f"{suspect.node} must prove itself before it is used again: {suspect.reason}"
