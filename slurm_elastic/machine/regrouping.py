"""Live transitions: workers that are there become the next generation in place, those who leave hand over first.

The new generation is the live one from the order on. It takes a number of its own, and its members keep the numbers
of the steps that hold their workers: that is how both are fenced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set

from msgspec.structs import replace

from slurm_elastic.machine.actions import KillWorkers, Member, Regroup
from slurm_elastic.machine.losses import Loss, capacity_went, count_failure, lose, losses_of
from slurm_elastic.machine.nodes import staying, usable
from slurm_elastic.machine.state import Generation, State
from slurm_elastic.machine.transitions import kind_of, launch, warm_up_limit
from slurm_elastic.machine.turn import Turn


def can_regroup(state: State) -> bool:
    """Whether the live generation can change in place. One that warms up to replace it goes on as it was meant."""
    live = state.live
    if not state.policy.live or live is None or not live.elastic or not live.well or state.ending or state.over:
        return False
    return state.next is None or state.next.standby


def must_wait(state: State, now: float) -> bool:
    """One change after the other, unless somebody who leaves has no more time."""
    if state.live is None or not state.live.regrouping:
        return False
    limit = warm_up_limit(state)
    return limit is None or now < limit


def available(state: State) -> tuple[Member, ...]:
    """Nodes to choose a new generation from, in the order in which they are taken: who is in place comes first."""
    there = usable(state)
    if not can_regroup(state):
        return there
    old = {member.node for member in state.members}
    return staying(state) + tuple(member for member in there if member.node not in old)


def change(turn: Turn, members: tuple[Member, ...], reason: str, *, planned: bool, chosen: bool = False) -> None:
    """Go over to these of the available nodes: in place where that is possible, else by a new launch of all."""
    if not can_regroup(turn.state):
        launch(turn, members, reason, planned=planned, chosen=chosen)
        return
    old = turn.state.members
    newcomers = tuple(member for member in members if member not in old)
    if newcomers:
        launch(turn, newcomers, reason, planned=planned, chosen=chosen, standby=True)
    else:
        regroup(turn, members, reason, planned=planned, chosen=chosen)


def regroup(
    turn: Turn,
    members: tuple[Member, ...],
    reason: str,
    *,
    planned: bool,
    chosen: bool = False,
    lost: Set[str] = frozenset(),
    stumbles: int = 0,
) -> None:
    """Make `members` (of the live generation and of its standby) the live generation. `lost`: nodes that are no more.

    A standby that is not taken is ended.
    """
    state, live, standby = turn.state, turn.state.live, turn.state.next
    if live is None:
        return
    number = state.last_number + 1
    old = tuple(replace(member, launch=live.launch_of(member)) for member in live.everyone)
    kept = {member.node for member in members}
    new = tuple(replace(m, launch=standby.number) for m in standby.members if m.node in kept) if standby else ()
    seated = tuple(m for m in old[: len(live.members)] if m.node in kept) + new
    made = Generation(
        number=number,
        members=seated,
        departing=tuple(m for m in old if m.node not in kept | lost and live.end_of(m.node) is None),
        launched_at=turn.now,
        opened_at=turn.now,
        reason=reason,
        planned=planned,
        chosen=chosen,
        elastic=True,
        live=True,
        before=live.before if live.regrouping else live.number,
        from_nodes=len(state.before),
        vanished=tuple(v for v in live.vanished if v.node not in lost),
        stumbles=stumbles,
    )
    made = replace(made, kind=kind_of(state, made, planned))
    turn.order(regroup_order(made, state))
    if standby is not None:
        fence(turn, standby, (m for m in standby.members if m.node not in kept), "it goes on without them")
    turn.change(last_number=number, live=made, next=None)
    if chosen:
        turn.change(chosen_at=turn.now)
    if made.kind == "grow":
        turn.change(grown_at=turn.now)
    turn.change(reason=f"training on {len(seated)} nodes ({reason})")


def regroup_order(made: Generation, state: State) -> Regroup:
    deadlines = [
        a.deadline for m in made.departing if (a := state.allocation(m.job_id)) is not None and a.deadline is not None
    ]
    return Regroup(
        generation=made.number,
        members=made.members,
        departing=made.departing,
        before=made.before,
        reason=made.reason,
        deadline=min(deadlines, default=None),
        planned=made.planned,
    )


def go_on_without_the_lost(turn: Turn) -> None:
    """Rule: the lost are fenced, the others regroup. With too few of them the generation is killed, as any other."""
    state, live = turn.state, turn.state.live
    if live is None or not can_regroup(state):
        return
    found = losses_of(state, live, live.everyone if live.regrouping else live.members, turn.now, silent_end=True)
    if not found:
        return
    lost = {loss.node for loss in found}
    ready = () if state.next is None else tuple(m for m in state.next.members if m.node in state.next.ready)
    there = staying(state, lost) + ready
    size = _size(state, there)
    if size == 0:  # those who leave are better than nothing, as long as they are there
        gone = lost | {end.node for end in live.ended}
        there = tuple(m for m in live.members if m.node not in gone) + ready
        size = _size(state, there)
    if size == 0:
        return
    why = _blame(turn, live, found)
    if not turn.state.over:
        fence(turn, live, (m for m in live.everyone if m.node in lost), why)
        regroup(turn, there[:size], why, planned=False, lost=lost)


def _size(state: State, there: tuple[Member, ...]) -> int:
    return state.policy.size_for(min(len(there), state.wanted_nodes))


def _blame(turn: Turn, live: Generation, found: list[Loss]) -> str:
    first = found[0]
    if any(not loss.by_worker for loss in found):
        capacity_went(turn)
    if first.by_worker:
        count_failure(turn, live.number, first.why, opened_at=live.opened_at)
    return first.why


def fence(turn: Turn, generation: Generation, members: Iterable[Member], reason: str) -> None:
    """End these members' workers, and refuse what they might still say."""
    nodes: dict[int, list[str]] = defaultdict(list)
    for member in members:
        nodes[generation.launch_of(member)].append(member.node)
        turn.change_allocation(member.job_id, killed_at=turn.now)
    for number, names in nodes.items():
        turn.order(KillWorkers(generation=number, nodes=tuple(names), reason=reason, alone=True))


def go_on_after_a_stumble(turn: Turn) -> None:
    """Rule: a collective failed and nobody is lost. Regroup with the same members, once; then all start anew."""
    state, live = turn.state, turn.state.live
    if live is None or live.stumbled_at is None or not can_regroup(state):
        return
    if turn.now < live.stumbled_at + turn.policy.stumble_patience:
        return
    why = "a collective failed, and nobody is lost"
    if live.stumbles and not live.stepping:
        lose(turn, f"{why}, twice", by_worker=True, node_gone=False)
        return
    count_failure(turn, live.number, why, opened_at=live.opened_at)
    if not turn.state.over:
        there = staying(state)
        size = _size(state, there)
        regroup(turn, there[:size] if size else live.members, why, planned=False, stumbles=live.stumbles + 1)


def give_up(turn: Turn) -> None:
    """Rule: who cannot regroup, or not in time, is launched again from the last checkpoint."""
    live = turn.state.live
    if live is None or live.killed_at is not None or not live.regrouping or live.opened_at is None:
        return
    if live.broken:
        lose(turn, live.broken, by_worker=True, node_gone=False)
    elif turn.now >= live.opened_at + turn.policy.regroup_timeout:
        lose(turn, "the workers did not regroup in time", by_worker=True, node_gone=False)


def finish_early(turn: Turn) -> None:
    """Rule: the training may end at the very step after which newcomers were to join: they are not needed any more."""
    live = turn.state.live
    if live is None or not live.regrouping or live.killed_at is not None:
        return
    old = tuple(member for member in live.members if member.launch <= live.before)
    ends = [live.end_of(member.node) for member in old]
    if old and len(old) < len(live.members) and all(end is not None and end.said == "finished" for end in ends):
        fence(turn, live, (m for m in live.members if m not in old), "the training is finished")
        turn.change_live(members=old)


def part_with_the_departing(turn: Turn) -> None:
    """Rule: those who left are forgotten, and those who do not leave in time are ended.

    Before the regroup is complete they may still be needed; if they are gone then, that is a loss.
    """
    live = turn.state.live
    if live is None or not live.departing or live.killed_at is not None:
        return
    late = tuple(m for m in live.departing if live.end_of(m.node) is None and _is_late(turn, live, m))
    if late:
        fence(turn, live, late, "it did not leave in time")
    left = tuple(m for m in live.departing if m not in late and live.end_of(m.node) is None)
    gone = {m.node for m in live.departing} - {m.node for m in left}
    turn.change_live(departing=left, ended=tuple(end for end in live.ended if end.node not in gone))


def _is_late(turn: Turn, live: Generation, member: Member) -> bool:
    if live.regrouped_at is None:
        return False
    allocation = turn.state.allocation(member.job_id)
    if allocation is None or not allocation.holds(live.launch_of(member), member.node):
        return True
    limit = live.regrouped_at + turn.policy.graceful_shutdown_timeout
    if allocation.deadline is not None:
        limit = min(limit, max(allocation.deadline, live.regrouped_at + 1.0))
    return turn.now >= limit
