"""Which nodes could train now, and which of them should. Questions to the state; nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from slurm_elastic.machine.actions import Member
from slurm_elastic.machine.events import StepHeld
from slurm_elastic.machine.state import Allocation, Generation, State


def trains(state: State, allocation: Allocation) -> bool:
    return allocation.role != "base" or state.policy.base_trains


def in_order(state: State) -> Iterator[Allocation]:
    """Base first, then companions in order of joining: the newest are the first to be given up."""
    yield from (a for a in state.allocations if a.role == "base")
    companions = [a for a in state.allocations if a.role != "base" and a.joined_at is not None]
    yield from sorted(companions, key=lambda a: (a.joined_at or 0.0, a.job_id))


class Ours(NamedTuple):
    """The steps that may run: all those of a launch, or single ones of workers that have outlived theirs."""

    launches: frozenset[int]
    steps: frozenset[tuple[int, str]]

    def has(self, step: StepHeld) -> bool:
        return step.generation in self.launches or (step.generation, step.node) in self.steps


def ours(state: State) -> Ours:
    """Of the generations that may have workers."""
    return steps_of(*(g for g in (state.live, state.next) if g is not None))


def steps_of(*generations: Generation) -> Ours:
    outlived = frozenset((m.launch, m.node) for g in generations for m in g.everyone if m.launch)
    return Ours(frozenset(g.number for g in generations), outlived)


def is_sound(allocation: Allocation) -> bool:
    """Its agent is there, and it will stay."""
    return (
        allocation.contact == "joined"
        and not allocation.leaving
        and not allocation.suspended
        and allocation.released_at is None
    )


def candidates(state: State) -> tuple[Member, ...]:
    """Nodes that are there, also those that must first get rid of old workers or prove themselves."""
    found: dict[str, Member] = {}
    for allocation in in_order(state):
        if is_sound(allocation) and trains(state, allocation):
            for node in allocation.nodes:
                found.setdefault(node, Member(node=node, job_id=allocation.job_id))
    return tuple(found.values())


def usable(state: State) -> tuple[Member, ...]:
    """Nodes that new workers can be launched on now, in the order in which they are taken."""
    blocked = {suspect.node for suspect in state.suspects} | leftovers(state)
    if state.live is not None:
        blocked.update(member.node for member in state.live.departing)
    return tuple(member for member in candidates(state) if member.node not in blocked)


def leftovers(state: State) -> set[str]:
    """Nodes where workers of a generation that is over may still run."""
    current = ours(state)
    return {step.node for a in state.allocations for step in a.steps if not current.has(step)}


def still_good(state: State, generation: Generation, now: float) -> tuple[Member, ...]:
    """Members of a generation behind the gate that can be waited for, in order. Linear in nodes: asked at each fact."""
    gone = {suspect.node for suspect in state.suspects} | leftovers(state) | {end.node for end in generation.ended}
    there = {
        (a.job_id, node)
        for a in state.allocations
        if is_sound(a) or (not a.leaving and may_rejoin(a, now))
        for node in a.nodes
    }
    return tuple(m for m in generation.members if m.node not in gone and (m.job_id, m.node) in there)


def may_rejoin(allocation: Allocation, now: float) -> bool:
    """Its silence means nothing yet: the supervisor was restarted a moment ago."""
    return (
        allocation.contact == "silent"
        and allocation.rejoin_by is not None
        and now < allocation.rejoin_by
        and not allocation.suspended
        and allocation.released_at is None
    )


def still_running(state: State, generation: Generation, now: float) -> bool:
    """Whether workers of `generation` may still run where we could hear of their end."""
    its = steps_of(generation)
    return any(
        its.has(step)
        for a in state.allocations
        if (a.contact == "joined" and not a.suspended) or may_rejoin(a, now)
        for step in a.steps
    )


def leaving_members(state: State) -> tuple[Member, ...]:
    """Members of the live generation whose allocation was noticed and whose workers have not ended."""
    live = state.live
    if live is None:
        return ()
    leaving = {a.job_id for a in state.allocations if a.leaving}
    return tuple(m for m in live.members if m.job_id in leaving) if leaving else ()


def staying(state: State, lost: Set[str] = frozenset()) -> tuple[Member, ...]:
    """Members of the live generation, by rank, that neither leave nor have ended nor are `lost` (nodes)."""
    if state.live is None:
        return ()
    gone = {m.node for m in leaving_members(state)} | {end.node for end in state.live.ended} | lost
    return tuple(m for m in state.live.members if m.node not in gone)


def earliest_deadline(state: State) -> float | None:
    deadlines = [
        a.deadline for m in leaving_members(state) if (a := state.allocation(m.job_id)) and a.deadline is not None
    ]
    return min(deadlines, default=None)


def busy_nodes(state: State) -> frozenset[str]:
    """Nodes with workers that have something to do."""
    return frozenset(member.node for g in (state.live, state.next) if g is not None for member in g.everyone)


def parked(state: State, allocation: Allocation, busy: Set[str]) -> tuple[str, ...]:
    """Its nodes that are there and are not `busy`."""
    if allocation.contact != "joined" or not trains(state, allocation):
        return ()
    return tuple(node for node in allocation.nodes if node not in busy)
