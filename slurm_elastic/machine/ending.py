"""Rule: a run that was asked to stop, or whose base job is taken, saves and stops."""

from __future__ import annotations

from slurm_elastic.machine.actions import Stop
from slurm_elastic.machine.nodes import still_running
from slurm_elastic.machine.state import Allocation, State
from slurm_elastic.machine.transitions import abandon_next, drain, is_taken
from slurm_elastic.machine.turn import Turn


def notice_of_the_base(turn: Turn) -> None:
    """Slurm takes the job that owns the run: that ends it for now."""
    base = _base(turn.state)
    if base is not None and base.leaving and not turn.state.ending:
        turn.change(ending=f"Slurm takes the base job {base.job_id} back ({base.notice})")


def end(turn: Turn) -> None:
    state = turn.state
    if not state.ending or state.over:
        return
    if state.next is not None:
        abandon_next(turn, state.ending)
    if state.live is None:
        reason = state.ending if state.cause_planned else f"{state.ending}; not saved, because {state.cause}"
        turn.change(phase="stopped", reason=reason)
        turn.order(stop_order(turn.state))
        return
    held = turn.now < state.hold_until and not is_taken(state)
    if state.live.well and not held and still_running(state, state.live, turn.now):
        base = _base(state)
        drain(turn, state.ending, base.deadline if base is not None else None)


def stop_order(state: State) -> Stop:
    """For a run in phase "stopped"."""
    base = _base(state)
    return Stop(reason=state.reason, requeue=base is not None and base.leaving and not state.stop_asked)


def _base(state: State) -> Allocation | None:
    return next((a for a in state.allocations if a.role == "base"), None)
