"""Rule: grow when more nodes wait than train, not too often, not in small bites, and only if it pays."""

from __future__ import annotations

from slurm_elastic.machine.actions import Member
from slurm_elastic.machine.regrouping import available, change
from slurm_elastic.machine.state import State
from slurm_elastic.machine.turn import Turn

FIRST_STEP_S = 60.0  # a script that reports no steps may be changed this long after its start


def grow(turn: Turn) -> None:
    state = turn.state
    live = state.live
    if live is None or not live.well or state.next is not None or state.ending or state.over:
        return
    there = available(state)
    size = state.policy.size_for(min(len(there), state.wanted_nodes))
    if size <= len(live.members):
        turn.change(parked_since=None)
        if state.asked and len(live.members) >= state.wanted_nodes:
            turn.change(asked=False)
        return
    if state.parked_since is None:
        turn.change(parked_since=turn.now)
    if may_grow(turn.state, there[:size], turn.now):
        more = size - len(live.members)
        reason = "1 node more is there" if more == 1 else f"{more} nodes more are there"
        change(turn, there[:size], reason, planned=True, chosen=True)
        turn.change(parked_since=None)


def may_grow(state: State, members: tuple[Member, ...], now: float) -> bool:
    live = state.live
    if live is None or not has_settled(state, now):
        return False
    if now < state.hold_until or not _is_whole(state, members, now):
        return False
    if state.asked:
        return True
    if state.chosen_at is not None and now < state.chosen_at + state.policy.scaling_timeout:
        return False
    return now >= state.grow_until and pays(state, members, now)


def has_settled(state: State, now: float) -> bool:
    live = state.live
    if live is None or live.opened_at is None:
        return False
    if live.live:  # its script reports steps
        return live.stepping
    return live.stepping or now >= live.opened_at + min(FIRST_STEP_S, state.policy.scaling_timeout)


def _is_whole(state: State, members: tuple[Member, ...], now: float) -> bool:
    """Nodes that come one after another make one growth: wait for those on their way, but not for ever."""
    if len(members) >= state.wanted_nodes:
        return True
    on_the_way = state.submissions or any(
        a.contact in ("pending", "starting") and a.released_at is None for a in state.allocations
    )
    if not on_the_way:
        return True
    return state.parked_since is not None and now >= state.parked_since + state.policy.scaling_timeout


def pays(state: State, members: tuple[Member, ...], now: float) -> bool:
    """gain x expected lifetime > cost, in node-seconds. While we change size, all nodes stand still."""
    more = len(members) - len(state.members)
    stall_s = state.policy.prior_stall if state.stall_s is None else state.stall_s
    gain = more * state.policy.growth_efficiency * expected_lifetime(state, members, now)
    return gain > stall_s * len(members)


def expected_lifetime(state: State, members: tuple[Member, ...], now: float) -> float:
    """Seconds that the new nodes will stay: companions' time together per loss seen, one loss assumed at first."""
    alive = sum(now - a.joined_at for a in state.allocations if a.role != "base" and a.joined_at is not None)
    expected = (state.policy.prior_lifetime + state.companion_seconds + alive) / (1 + state.companion_ends)
    old = {m.node for m in state.members}
    for member in members:
        allocation = state.allocation(member.job_id)
        if member.node not in old and allocation is not None and allocation.end_time is not None:
            expected = min(expected, allocation.end_time - now)
    return expected
