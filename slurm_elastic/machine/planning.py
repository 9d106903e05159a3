"""Rules: when a new generation is needed (nodes leave, the user asks, nothing trains), and who is in it."""

from __future__ import annotations

from slurm_elastic.machine.losses import capacity_went
from slurm_elastic.machine.nodes import leaving_members, may_rejoin, trains, usable
from slurm_elastic.machine.regrouping import available, change, must_wait
from slurm_elastic.machine.state import State
from slurm_elastic.machine.transitions import drain, launch
from slurm_elastic.machine.turn import Turn

BASE_JOINS_S = 10.0  # the agent of the base job is started together with the supervisor


def plan(turn: Turn) -> None:
    state = turn.state
    if state.next is not None or state.over or state.ending:
        return
    if state.live is None or not state.live.well:
        _plan_after_the_end(turn)
    elif must_wait(state, turn.now):
        return
    elif leaving_members(state):
        _plan_without_the_leaving(turn)
    elif 0 < state.wanted_nodes < len(state.members) and turn.now >= state.hold_until:
        there = available(state)
        members = there[: state.policy.size_for(min(len(there), state.wanted_nodes))]
        if members:
            change(turn, members, f"asked for {state.wanted_nodes} nodes", planned=True, chosen=True)


def _plan_after_the_end(turn: Turn) -> None:
    """Nothing trains, or not for long: launch on whatever is there."""
    state = turn.state
    there = usable(state)
    size = state.policy.size_for(min(len(there), state.wanted_nodes))
    if size == 0:
        if state.live is None and (state.paused or not state.before):
            turn.change(reason=waiting_words(state, len(there)))
        return
    if _replacement_may_come(turn, size) or _others_may_rejoin(turn, size):
        return
    planned = state.cause_planned
    launch(turn, there[:size], state.cause or "enough nodes are there", planned=planned)


def waiting_words(state: State, there: int) -> str:
    words = f"waiting for nodes: {there} usable, at least {state.policy.min_nodes} needed"
    return words + (f"; {len(state.suspects)} must prove themselves" if state.suspects else "")


def _replacement_may_come(turn: Turn, size: int) -> bool:
    """After a loss the policy may give a replacement some time before we go on with fewer nodes."""
    state = turn.state
    if state.paused or state.cause_planned or state.lost_at is None or size >= len(state.before):
        return False
    return turn.now < state.lost_at + state.policy.faulty_scale_down_timeout


def _others_may_rejoin(turn: Turn, size: int) -> bool:
    """A new supervisor hears from those who are still there one after the other: one generation for all of them."""
    state = turn.state
    missing = sum(len(a.nodes) for a in state.allocations if trains(state, a) and may_rejoin(a, turn.now))
    base_is_known = any(a.role == "base" for a in state.allocations)
    if state.policy.base_trains and not base_is_known and turn.now < state.started_at + BASE_JOINS_S:
        missing += state.policy.base_nodes
    return state.policy.size_for(min(len(usable(state)) + missing, state.wanted_nodes)) > size


def _plan_without_the_leaving(turn: Turn) -> None:
    state = turn.state
    leaving = leaving_members(state)
    first = state.allocation(leaving[0].job_id)
    source = first.notice if first is not None else ""
    reason = f"job {leaving[0].job_id} with {', '.join(m.node for m in leaving)} is leaving ({source})"
    there = available(state)
    size = state.policy.size_for(min(len(there), state.wanted_nodes, len(state.members)))
    if size == 0:
        drain(turn, f"{reason}; {len(there)} nodes stay and at least {state.policy.min_nodes} are needed")
    else:
        change(turn, there[:size], reason, planned=True)
    capacity_went(turn)
