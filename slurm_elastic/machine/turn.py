"""One turn of the machine: the state so far and the orders so far. Lives only inside one call of `step`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from slurm_elastic.machine.actions import Action
from slurm_elastic.machine.events import StepHeld
from slurm_elastic.machine.policy import Policy
from slurm_elastic.machine.state import Allocation, Generation, State, Suspect


class Turn:
    """What the rules work on. `state` is replaced, never changed; `actions` only grows."""

    __slots__ = ("actions", "now", "state")

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def order(self, action: Action) -> None:
        self.actions.append(action)

    def change(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)

    def change_live(self, **fields: Any) -> None:
        if self.state.live is not None:
            self.change(live=replace(self.state.live, **fields))

    def change_next(self, **fields: Any) -> None:
        if self.state.next is not None:
            self.change(next=replace(self.state.next, **fields))

    def generation_of(self, launch: int, node: str) -> Generation | None:
        """The live or the next generation, if the workers of `launch` on `node` belong to it."""
        for generation in (self.state.live, self.state.next):
            if generation is not None and generation.has(launch, node):
                return generation
        return None

    def change_generation(self, number: int, **fields: Any) -> None:
        if self.state.live is not None and self.state.live.number == number:
            self.change_live(**fields)
        elif self.state.next is not None and self.state.next.number == number:
            self.change_next(**fields)

    # ---- allocations

    def add(self, allocation: Allocation) -> None:
        self.change(allocations=(*self.state.allocations, allocation))

    def change_allocation(self, job_id: int, **fields: Any) -> None:
        self.change(
            allocations=tuple(replace(a, **fields) if a.job_id == job_id else a for a in self.state.allocations)
        )

    def drop(self, job_id: int) -> None:
        """Forget an allocation that is gone, with what was suspected of its nodes."""
        self.change(
            allocations=tuple(a for a in self.state.allocations if a.job_id != job_id),
            suspects=tuple(s for s in self.state.suspects if s.job_id != job_id),
        )

    def hold(self, job_id: int, *steps: StepHeld) -> None:
        allocation = self.state.allocation(job_id)
        if allocation is not None:
            self.change_allocation(job_id, steps=(*allocation.steps, *steps))

    def release_step(self, generation: int, node: str) -> None:
        """The step of `generation` on `node` is over."""
        gone = StepHeld(generation=generation, node=node)
        for allocation in self.state.allocations:
            if gone in allocation.steps:
                self.change_allocation(allocation.job_id, steps=tuple(s for s in allocation.steps if s != gone))

    def suspect(self, node: str, job_id: int, reason: str) -> None:
        if all(s.node != node for s in self.state.suspects):
            self.change(suspects=(*self.state.suspects, Suspect(node=node, job_id=job_id, reason=reason)))
