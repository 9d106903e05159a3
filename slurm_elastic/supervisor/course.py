"""The run's state and the one queue of facts about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slurm_elastic.machine.events import Event
from slurm_elastic.machine.state import Generation, State


@dataclass(slots=True)
class Course:
    """What all parts of the supervisor look at. Only the loop replaces `state`; anyone in the loop's thread posts."""

    state: State
    epoch: int
    base_job_id: int
    restart_count: int = 0  # of the base job
    facts: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    def post(self, fact: Event) -> None:
        self.facts.put_nowait(fact)

    @property
    def workers_per_node(self) -> int:
        return self.state.policy.workers_per_node

    def is_live(self, generation: int) -> bool:
        """Whether this generation's gate was opened and its end not yet seen."""
        return self.state.live is not None and self.state.live.number == generation

    def expected(self, launch: int, node: str) -> Generation | None:
        """The generation of these workers, if they have any business here: it trains, or waits behind the gate."""
        for found in (self.state.live, self.state.next):
            if found is not None and found.has(launch, node):
                return found
        return None

    def places(self, generation: int) -> tuple[tuple[int, str], ...]:
        """Launch and node of all workers of a generation that trains or waits, also of those that depart."""
        for found in (self.state.live, self.state.next):
            if found is not None and found.number == generation:
                return tuple((found.launch_of(member), member.node) for member in found.everyone)
        return ()

    def is_standby(self, launch: int) -> bool:
        """Whether these workers wait for seats in the live generation."""
        following = self.state.next
        return following is not None and following.standby and following.number == launch
