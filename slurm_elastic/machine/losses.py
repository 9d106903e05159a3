"""Rule: when a member of the live generation is lost, all its workers are ended at once.

The survivors hang in a collective or are about to; what they did since the last committed step is lost anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_elastic.machine.actions import GiveUp, KillWorkers, Member
from slurm_elastic.machine.nodes import earliest_deadline, may_rejoin
from slurm_elastic.machine.state import Allocation, Generation, State
from slurm_elastic.machine.turn import Turn
from slurm_elastic.machine.working import describe, is_clean


class Loss(NamedTuple):
    node: str
    why: str
    by_worker: bool  # its own failure: counts against the restart budget


def kill_what_lost_a_member(turn: Turn) -> None:
    live = turn.state.live
    if live is None or live.killed_at is not None:
        return
    losses = losses_of(turn.state, live, live.members, turn.now)
    if losses:
        first = losses[0]
        lose(turn, first.why, by_worker=first.by_worker, node_gone=any(not loss.by_worker for loss in losses))


def losses_of(
    state: State, live: Generation, members: tuple[Member, ...], now: float, *, silent_end: bool = False
) -> list[Loss]:
    """Those of `members` that are lost. `silent_end`: also one that exited with 0 and said nothing, unasked."""
    held = {(a.job_id, node): a for a in state.allocations for node in a.nodes}
    losses = [loss for m in members if (loss := _loss(state, live, m, held, now)) is not None]
    if silent_end:  # where all go on together until they say that they finished, this is no end of the training
        nodes = {member.node for member in members}
        silent = [end.node for end in live.ended if end.node in nodes and not end.said and is_clean(end)]
        losses += [Loss(node, f"the workers on {node} left without a word", True) for node in silent]
    return losses


def kill_what_does_not_end(turn: Turn) -> None:
    """A drain has a limit. Workers that go on when others have ended with exit code 0 have none here: one rank may
    evaluate or export for an hour; one that hangs in a collective is ended by its process group's own time-out.
    """
    live = turn.state.live
    if live is None or live.killed_at is not None:
        return
    limit = drain_limit(turn.state, live)
    if limit is not None and turn.now >= limit:
        lose(turn, f"the workers did not stop in time ({turn.state.cause})", by_worker=False, node_gone=False)


def drain_limit(state: State, live: Generation) -> float | None:
    """When a drain is over, done or not. An earlier deadline that came later counts; a second is left at least."""
    if live.drain_at is None:
        return None
    limits = [live.drain_at + state.policy.graceful_shutdown_timeout]
    limits += [max(d, live.drain_at + 1.0) for d in (live.drain_deadline, earliest_deadline(state)) if d is not None]
    return min(limits)


def lose(turn: Turn, why: str, *, by_worker: bool, node_gone: bool) -> None:
    """Kill the live generation. What follows is not planned."""
    live = turn.state.live
    if live is None:
        return
    turn.order(KillWorkers(generation=live.number, reason=why))
    turn.change_live(killed_at=turn.now)
    turn.change(cause=why, cause_planned=False, lost_at=turn.now, reason=why)
    if node_gone:
        capacity_went(turn)
    if by_worker and not turn.state.ending:
        count_failure(turn, live.number, why, opened_at=live.opened_at)


def count_failure(turn: Turn, generation: int, why: str, opened_at: float | None = None) -> None:
    """One more failure without progress; too many end the run.

    A script that never commits a checkpoint shows no progress: there a long life counts as such. While the controller
    is away no step can start on any node: that is nobody's failure.
    """
    if turn.state.slurm_silent_since is not None:
        return
    lived_long = turn.state.best_step == 0 and opened_at is not None and turn.now - opened_at >= 600.0
    failures = 1 if lived_long else turn.state.failures + 1
    turn.change(failures=failures)
    if failures > turn.policy.max_restarts and not turn.state.over:
        known = turn.state.first_failure if turn.state.failed_generation == generation else ""
        words = (known or why).partition("\n")[0]
        reason = f"{failures} failures in a row without a new committed step; the last: {words}"
        turn.order(GiveUp(reason=reason))
        turn.change(phase="failed", reason=reason)


def capacity_went(turn: Turn) -> None:
    """Nodes were taken from us: a growth that just happened did not last, and the next one waits longer."""
    state = turn.state
    if state.grown_at is None:
        return
    snooze = turn.policy.scale_up_snooze_time
    lasting = max(turn.policy.scaling_timeout, snooze * 2 ** min(state.grow_level, 30))
    if turn.now - state.grown_at >= min(lasting, turn.policy.longest_snooze):
        turn.change(grown_at=None, grow_level=0)
    else:
        snooze_growth(turn)


def parked_went(turn: Turn, allocation: Allocation) -> None:
    """A companion is taken before it could train: capacity that comes and goes is not asked for again at once.

    Several that go together count once. Members are growths that did not last, or count with the growth they end.
    """
    state = turn.state
    members = {m.job_id for g in (state.live, state.next) if g is not None for m in g.members}
    if allocation.role == "base" or allocation.joined_at is None or allocation.job_id in members:
        return
    lived_s = turn.now - allocation.joined_at
    if turn.now >= state.grow_until and lived_s < turn.policy.scale_up_snooze_time:
        snooze_growth(turn)


def snooze_growth(turn: Turn) -> None:
    level = turn.state.grow_level + 1
    snooze = min(turn.policy.scale_up_snooze_time * 2 ** min(level - 1, 30), turn.policy.longest_snooze)
    turn.change(grown_at=None, grow_level=level, grow_until=turn.now + snooze)


def _loss(
    state: State, live: Generation, member: Member, held: Mapping[tuple[int, str], Allocation], now: float
) -> Loss | None:
    """`held`: all allocations by job id and node."""
    allocation = held.get((member.job_id, member.node)) or state.allocation(member.job_id)
    end = live.end_of(member.node) if live.ended else None
    if end is not None:
        taken = allocation is None or allocation.leaving
        return None if is_clean(end) else Loss(member.node, describe(end), not taken)
    if allocation is None:
        return Loss(member.node, f"job {member.job_id} with {member.node} is gone", False)
    if (member.job_id, member.node) not in held:
        return Loss(member.node, f"{member.node} has left job {member.job_id}", False)
    if allocation.suspended:
        return Loss(member.node, f"job {member.job_id} with {member.node} was suspended", False)
    if allocation.contact == "silent" and not may_rejoin(allocation, now):
        return Loss(member.node, f"no sign of life from the agent of job {member.job_id} with {member.node}", False)
    if member.node in live.lost:
        return Loss(member.node, f"a worker on {member.node} gave no sign of life", True)
    if any(v.node == member.node and now >= v.until for v in live.vanished):
        return Loss(member.node, f"the workers on {member.node} are gone, nobody knows how", False)
    return None
