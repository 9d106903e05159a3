"""Rules: the next generation warms up behind its gate, the live one stops, the gate opens.

At most one generation has an open gate: the next one's opens only after every worker of the live one that could
still be heard of has ended, and what cannot be heard of is fenced by its number.
"""

from __future__ import annotations

import math

from slurm_elastic.machine.actions import (
    DrainWorkers,
    Finish,
    KillWorkers,
    LaunchWorkers,
    Member,
    OpenGate,
    RecordTransition,
)
from slurm_elastic.machine.events import StepHeld, WorkersStayed
from slurm_elastic.machine.losses import count_failure, snooze_growth
from slurm_elastic.machine.nodes import (
    candidates,
    earliest_deadline,
    leaving_members,
    still_good,
    still_running,
)
from slurm_elastic.machine.state import Generation, State
from slurm_elastic.machine.turn import Turn
from slurm_elastic.machine.working import record

LEAVE_MARGIN_S = 6.0  # to agree on a boundary, end the steps and give the node back, also on a busy node
HOLD_S = 60.0  # after a drain that could not save, before the next that we choose
SETTLED_S = 30.0  # a generation of a script that reports no steps counts as trained after this


def launch(
    turn: Turn,
    members: tuple[Member, ...],
    reason: str,
    *,
    planned: bool,
    chosen: bool = False,
    standby: bool = False,
) -> None:
    """Start the workers of a new generation; they wait at the gate, or as a standby for seats in the live one."""
    number = turn.state.last_number + 1
    turn.order(LaunchWorkers(generation=number, members=members, standby=standby))
    for member in members:
        turn.hold(member.job_id, StepHeld(generation=number, node=member.node))
    following = Generation(
        number=number,
        members=members,
        launched_at=turn.now,
        reason=reason,
        planned=planned,
        chosen=chosen,
        standby=standby,
    )
    turn.change(last_number=number, next=following, reason=reason)


def check_next(turn: Turn) -> None:
    """Keep the generation behind the gate possible: lose members that will not come, or give it up."""
    following = turn.state.next
    if following is None or following.standby:
        return
    overdue = turn.now >= following.launched_at + turn.policy.launch_timeout
    good = still_good(turn.state, following, turn.now)
    if overdue:
        ready = frozenset(following.ready)
        for member in good:
            if member.node not in ready:
                turn.suspect(member.node, member.job_id, "its workers were not ready in time")
        good = tuple(member for member in good if member.node in ready)
    if len(good) < len(following.members):
        _shrink_next(turn, following, good, overdue=overdue)


def _shrink_next(turn: Turn, following: Generation, good: tuple[Member, ...], *, overdue: bool) -> None:
    state = turn.state
    bad = {m.node for m in following.members if m not in good}
    own_fault = (
        overdue or any(end.node in bad for end in following.ended) or any(node in bad for node in following.lost)
    )
    well = state.live is not None and state.live.well
    size = state.policy.size_for(min(len(good), state.wanted_nodes))
    pointless = well and not leaving_members(state) and size <= len(state.members) <= state.wanted_nodes
    why = "its workers were not ready in time" if overdue else "nodes of it are lost"
    if size == 0 or pointless:
        abandon_next(turn, why)
        if well and following.chosen:
            snooze_growth(turn)
    else:
        kept = good[:size]
        dropped = tuple(m.node for m in following.members if m not in kept)
        turn.order(KillWorkers(generation=following.number, nodes=dropped, reason=why, alone=True))
        ready = tuple(n for n in following.ready if n not in dropped)
        turn.change_next(members=kept, ready=ready, failed=following.failed or own_fault)
    if own_fault and not following.failed and not well and not state.ending:
        count_failure(turn, following.number, f"generation {following.number} did not start: {why}")


def abandon_next(turn: Turn, why: str) -> None:
    following = turn.state.next
    if following is not None:
        turn.order(KillWorkers(generation=following.number, nodes=following.nodes, reason=why, alone=True))
        turn.change(next=None)


def drain_when_next_is_ready(turn: Turn) -> None:
    """Stop the live generation once the next is warm, or when a notice leaves no more time to warm up."""
    live, following = turn.state.live, turn.state.next
    if live is None or following is None or following.standby or not live.well:
        return
    out_of_time = warm_up_limit(turn.state)
    if set(following.nodes) <= set(following.ready) or (out_of_time is not None and turn.now >= out_of_time):
        drain(turn, following.reason)


def warm_up_limit(state: State) -> float | None:
    """When the live generation must start to stop because of a notice, warm successor or not."""
    limits = []
    for member in leaving_members(state):
        allocation = state.allocation(member.job_id)
        if allocation is None or allocation.noticed_at is None:
            continue
        lead = state.policy.short_lead
        if allocation.deadline is not None:
            window = max(0.0, allocation.deadline - allocation.noticed_at)
            lead = min(state.policy.lead, max(window / 3, window - _time_to_leave(state)))
        limits.append(allocation.noticed_at + lead)
    return min(limits, default=None)


def _time_to_leave(state: State) -> float:
    """From the order to drain to the release of the node. Before a save was measured nobody knows."""
    return math.inf if state.save_s is None else 1.5 * state.save_s + LEAVE_MARGIN_S


def drain(turn: Turn, reason: str, deadline: float | None = None) -> None:
    live = turn.state.live
    if live is None or not live.well:
        return
    known = [d for d in (deadline, earliest_deadline(turn.state)) if d is not None]
    deadline = min(known, default=None)
    save = deadline is None or deadline - turn.now >= 1.5 * (turn.state.save_s or 0.0) + 1.0
    may_stay = deadline is None and not is_taken(turn.state)
    turn.order(DrainWorkers(generation=live.number, reason=reason, save=save, deadline=deadline, may_stay=may_stay))
    turn.change_live(drain_at=turn.now, drain_deadline=deadline)
    words = reason if save else f"{reason}; too little time is left to save"
    turn.change(cause=words, cause_planned=True, reason=words)


def is_taken(state: State) -> bool:
    """Slurm takes nodes that train, or the job that owns the run: the workers must leave, saved or not."""
    return bool(leaving_members(state)) or any(a.role == "base" and a.leaving for a in state.allocations)


def workers_stayed(turn: Turn, event: WorkersStayed) -> None:
    """What we chose can wait until a checkpoint is public again, or for HOLD_S: nothing is lost."""
    live = turn.state.live
    if live is None or live.number != event.generation or live.drain_at is None or live.killed_at is not None:
        return
    reason = f"training on, {turn.state.cause} must wait: {event.reason}"
    abandon_next(turn, reason)
    turn.change_live(drain_at=None, drain_deadline=None)
    turn.change(hold_until=turn.now + HOLD_S, cause="", reason=reason)


def retire_live(turn: Turn) -> None:
    """The live generation is over when the last worker that can be heard of has ended."""
    live = turn.state.live
    if live is None:
        return
    running = still_running(turn.state, live, turn.now)
    if live.killed_at is not None:
        if running and turn.now < live.killed_at + turn.policy.kill_timeout:
            return
        if running:
            turn.order(KillWorkers(generation=live.number, reason="still there after they were killed"))
        settled = live.opened_at is not None and live.killed_at - live.opened_at >= SETTLED_S
        if settled and not live.recorded and not live.regrouping:
            record(turn, live)
    else:
        if running or any(live.end_of(node) is None for node in live.nodes):
            return
        if not live.recorded and not live.regrouping:
            record(turn, live)
        said = {end.said for end in live.ended}
        if "finished" in said or (live.drain_at is None and said == {""}):
            reason = "the training is finished"
            abandon_next(turn, reason)
            turn.order(Finish(reason=reason))
            turn.change(live=None, phase="finished", reason=reason)
            return
        if live.drain_at is None:
            turn.change(cause="the workers stopped on their own", cause_planned=False)
    turn.change(live=None)


def open_gate(turn: Turn) -> None:
    following = turn.state.next
    if turn.state.live is not None or following is None or following.standby:
        return
    if not set(following.nodes) <= set(following.ready):
        return
    state = turn.state
    planned = following.planned and state.cause_planned
    opened = {
        "kind": kind_of(state, following, planned),
        "from_nodes": 0 if state.paused and planned else len(state.before),
        "planned": planned,
        "reason": following.reason if planned else state.cause or following.reason,
        "opened_at": turn.now,
    }
    turn.order(OpenGate(generation=following.number, members=following.members))
    turn.change_next(**opened)
    turn.change(live=turn.state.next, next=None, cause_planned=True, lost_at=None)
    if following.chosen:
        turn.change(chosen_at=turn.now)
    if opened["kind"] == "grow" and not state.paused:
        turn.change(grown_at=turn.now)
    turn.change(reason=f"training on {len(following.members)} nodes ({opened['reason']})", cause="")


def kind_of(state: State, following: Generation, planned: bool) -> str:
    if not state.has_trained:
        return "start"
    if not state.before:
        return "restart"  # a run that had stopped comes back
    if planned and state.paused:
        return "grow"  # from nothing
    before, after = {m.node for m in state.before}, set(following.nodes)
    if planned and len(after) != len(before):
        return "grow" if len(after) > len(before) else "shrink"
    return "restart" if before == after else "replace"


def pause_for_want_of_nodes(turn: Turn) -> None:
    """Say once that training waits: nothing lives, nothing starts, and what is there is too little."""
    state = turn.state
    if state.live is not None or state.next is not None or state.paused or not state.before or state.ending:
        return
    there = len(candidates(state))
    if state.policy.size_for(there) > 0:
        return
    reason = f"{state.cause}; {there} nodes are left and at least {state.policy.min_nodes} are needed"
    done = RecordTransition(
        kind="wait",
        mode="relaunch",
        reason=reason,
        from_workers=len(state.before) * state.policy.workers_per_node,
        to_workers=0,
        generation=state.last_number,
        planned=state.cause_planned,
    )
    turn.order(done)
    turn.change(last_transition=done, paused=True, reason=reason)
