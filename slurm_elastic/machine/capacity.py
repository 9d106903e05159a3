"""Rules about jobs: ask for companions, give back what is leaving or too much, cancel what is silent for too long."""

from __future__ import annotations

from collections.abc import Set

from msgspec.structs import replace

from slurm_elastic.machine.actions import CancelJob, KillWorkers, ProbeNode, ReleaseAllocation, SubmitCompanion
from slurm_elastic.machine.nodes import Ours, busy_nodes, is_sound, ours, parked
from slurm_elastic.machine.state import Allocation, State, Submission
from slurm_elastic.machine.turn import Turn

HOPELESS_TRIES = 3


def tend(turn: Turn) -> None:
    """All rules about allocations, in the order in which one makes room for the next."""
    current = ours(turn.state)
    for allocation in turn.state.allocations:
        _end_leftovers(turn, allocation, current)
        if allocation.role != "base":
            _give_back(turn, allocation, current)
    _release_surplus(turn)
    _probe(turn)
    _submit(turn)


def _end_leftovers(turn: Turn, allocation: Allocation, current: Ours) -> None:
    """Workers of a generation that is over must end before their node is used; they are told again until they do."""
    old = tuple(step for step in allocation.steps if not current.has(step))
    if not old or allocation.contact != "joined" or allocation.suspended or allocation.released_at is not None:
        return
    if allocation.killed_at is not None and turn.now < allocation.killed_at + turn.policy.kill_timeout:
        return
    if allocation.kills >= HOPELESS_TRIES:
        for step in old:
            turn.suspect(step.node, allocation.job_id, "its old workers were never reported gone")
        steps = tuple(step for step in allocation.steps if step not in old)
        turn.change_allocation(allocation.job_id, steps=steps, kills=0, killed_at=None)
        return
    for step in old:
        reason = "its generation is over"
        turn.order(KillWorkers(generation=step.generation, nodes=(step.node,), reason=reason, alone=True))
    turn.change_allocation(allocation.job_id, killed_at=turn.now, kills=allocation.kills + 1)


def _give_back(turn: Turn, allocation: Allocation, current: Ours) -> None:
    if allocation.released_at is not None:
        if turn.now >= allocation.released_at + turn.policy.order_timeout:
            _cancel(turn, allocation, "it should have ended by now")
    elif allocation.contact == "silent":
        since = max(allocation.silent_since or turn.now, allocation.rejoin_by or 0.0)
        if turn.now >= since + turn.policy.rejoin_window:
            _cancel(turn, allocation, f"its agent is silent for {turn.now - since:.0f} s")
    elif allocation.contact == "joined" and allocation.leaving and not _works(allocation, current):
        _release(turn, allocation, f"given back early ({allocation.notice})")


def _works(allocation: Allocation, current: Ours) -> bool:
    return any(current.has(step) for step in allocation.steps)


def _cancel(turn: Turn, allocation: Allocation, reason: str) -> None:
    turn.order(CancelJob(job_id=allocation.job_id, reason=reason))
    turn.change_allocation(allocation.job_id, released_at=turn.now)


def _release(turn: Turn, allocation: Allocation, reason: str) -> None:
    turn.order(ReleaseAllocation(job_id=allocation.job_id, reason=reason))
    turn.change_allocation(allocation.job_id, released_at=turn.now)


def have(state: State) -> int:
    """Nodes that we have or have asked for, but for those that are leaving."""
    base = next((a for a in state.allocations if a.role == "base"), None)
    nodes = state.policy.base_nodes if base is None else len(base.nodes)
    total = nodes if state.policy.base_trains else 0
    for allocation in state.allocations:
        if allocation.role != "base" and allocation.released_at is None and not allocation.leaving:
            total += len(allocation.nodes) or state.policy.companion_nodes
    return total + len(state.submissions) * state.policy.companion_nodes


def _release_surplus(turn: Turn) -> None:
    """More than the wanted size for a while (at once when the user asked for less): the newest go first."""
    state = turn.state
    excess = have(state) - state.wanted_nodes
    patience = 2 * state.policy.scaling_timeout
    if excess <= 0:
        turn.change(surplus_since=None)
    elif state.surplus_since is None:
        turn.change(surplus_since=turn.now)
    since = turn.state.surplus_since
    ripe = since is not None and (state.wanted is not None or turn.now >= since + patience)
    newest_first, busy = reversed(state.allocations), busy_nodes(state)
    for allocation in sorted(newest_first, key=lambda a: a.contact != "pending"):  # those that only wait go first
        if allocation.role == "base" or allocation.released_at is not None or allocation.leaving:
            continue
        nodes = len(allocation.nodes) or state.policy.companion_nodes
        if allocation.contact == "pending" and nodes <= excess:
            _cancel(turn, allocation, "no longer wanted")
            excess -= nodes
        elif _is_idle(state, allocation, busy):
            if ripe and nodes <= excess:
                _release(turn, allocation, "more nodes than wanted")
                excess -= nodes
            elif _sleeps_long(state, allocation, turn.now, patience):
                _release(turn, allocation, "growth is snoozed; others may use it meanwhile")


def _is_idle(state: State, allocation: Allocation, busy: Set[str]) -> bool:
    settled = state.live is not None and state.live.well and state.next is None
    return settled and is_sound(allocation) and len(parked(state, allocation, busy)) == len(allocation.nodes)


def _sleeps_long(state: State, allocation: Allocation, now: float, patience: float) -> bool:
    joined = allocation.joined_at if allocation.joined_at is not None else now
    return now >= joined + patience and state.grow_until - now > patience


def _probe(turn: Turn) -> None:
    """Ask suspect nodes to prove themselves; a companion that cannot is given back."""
    kept, current = [], ours(turn.state)
    for suspect in turn.state.suspects:
        allocation = turn.state.allocation(suspect.job_id)
        if allocation is None or suspect.node not in allocation.nodes:
            continue
        asked = suspect.asked_at is not None and turn.now < suspect.asked_at + turn.policy.probe_timeout
        if is_sound(allocation) and not asked and turn.now >= suspect.not_before:
            if suspect.tries >= HOPELESS_TRIES and allocation.role != "base" and not _works(allocation, current):
                _release(turn, allocation, f"{suspect.node} does not work: {suspect.reason}")
            else:
                turn.order(ProbeNode(job_id=suspect.job_id, node=suspect.node))
                suspect = replace(suspect, asked_at=turn.now)
        kept.append(suspect)
    turn.change(suspects=tuple(kept))


def _submit(turn: Turn) -> None:
    _submit_again(turn)
    state = turn.state
    base = next((a for a in state.allocations if a.role == "base" and a.contact == "joined"), None)
    if not state.policy.companions or state.submit_blocked or base is None or state.ending or state.over:
        return
    urgent = have(state) < state.policy.min_nodes
    if base.leaving or turn.now < state.submit_until or (turn.now < state.grow_until and not urgent):
        return
    missing = state.wanted_nodes - have(state)
    count = missing // state.policy.companion_nodes or (1 if urgent else 0)
    waiting = [a for a in state.allocations if a.contact == "pending" and a.released_at is None]
    room = state.policy.max_pending_companions - len(state.submissions) - len(waiting)
    for number in range(state.submitted + 1, state.submitted + 1 + max(0, min(count, room))):
        token = state.token(number)
        turn.order(SubmitCompanion(token=token, nodes=state.policy.companion_nodes))
        turn.change(
            submitted=number,
            submissions=(*turn.state.submissions, Submission(token=token, ordered_at=turn.now)),
        )


def _submit_again(turn: Turn) -> None:
    """An order that was never answered is repeated: its token keeps it from making a second job."""
    submissions = []
    for submission in turn.state.submissions:
        if turn.now >= submission.ordered_at + turn.policy.order_timeout:
            turn.order(SubmitCompanion(token=submission.token, nodes=turn.policy.companion_nodes))
            submission = replace(submission, ordered_at=turn.now)
        submissions.append(submission)
    turn.change(submissions=tuple(submissions))
