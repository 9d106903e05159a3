"""Rule: new nodes join the live generation once their workers are warm, or it changes without them."""

from __future__ import annotations

from slurm_elastic.machine.actions import Member
from slurm_elastic.machine.losses import snooze_growth
from slurm_elastic.machine.nodes import leaving_members, staying, still_good
from slurm_elastic.machine.regrouping import can_regroup, fence, regroup
from slurm_elastic.machine.state import Generation
from slurm_elastic.machine.transitions import abandon_next, drain, warm_up_limit
from slurm_elastic.machine.turn import Turn


def regroup_when_ready(turn: Turn) -> None:
    standby, live = turn.state.next, turn.state.live
    if standby is None or not standby.standby:
        return
    if live is None or not can_regroup(turn.state):
        abandon_next(turn, "the generation that it was to join is over")
        return
    hurry = warm_up_limit(turn.state)
    out_of_time = hurry is not None and turn.now >= hurry
    overdue = turn.now >= standby.launched_at + turn.policy.launch_timeout
    good = _good(turn, standby, overdue=overdue)
    awaited = () if overdue or out_of_time else tuple(m for m in good if m.node not in standby.ready)
    if awaited or (live.regrouping and not out_of_time):
        _keep(turn, standby, good)
    else:
        _decide(turn, live, standby, tuple(m for m in good if m.node in standby.ready))


def _good(turn: Turn, standby: Generation, *, overdue: bool) -> tuple[Member, ...]:
    """Those that can still be waited for. Nodes whose workers did not come up must prove themselves."""
    good = still_good(turn.state, standby, turn.now)
    if overdue:
        for member in good:
            if member.node not in standby.ready:
                turn.suspect(member.node, member.job_id, "its workers were not ready in time")
    return good


def _keep(turn: Turn, standby: Generation, good: tuple[Member, ...]) -> None:
    """Wait for the others without those that are lost."""
    lost = tuple(member for member in standby.members if member not in good)
    if lost:
        fence(turn, standby, lost, "it is lost")
        nodes = {member.node for member in lost}
        turn.change_next(members=good, ready=tuple(node for node in standby.ready if node not in nodes))


def _decide(turn: Turn, live: Generation, standby: Generation, ready: tuple[Member, ...]) -> None:
    state = turn.state
    there = staying(state) + ready
    size = state.policy.size_for(min(len(there), state.wanted_nodes))
    leaving = leaving_members(state)
    if not leaving and size <= len(live.members) <= state.wanted_nodes:
        abandon_next(turn, "its workers were not ready in time" if len(ready) < len(standby.members) else "too few")
        if standby.chosen:
            snooze_growth(turn)
    elif size:
        regroup(turn, there[:size], standby.reason, planned=standby.planned, chosen=standby.chosen)
    else:
        abandon_next(turn, standby.reason)
        drain(turn, f"{standby.reason}; {len(there)} nodes stay and at least {state.policy.min_nodes} are needed")
