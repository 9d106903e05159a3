"""The workers: who waits at the gate, who trains, who has gone silent, and what they said when they left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from slurm_elastic.machine.events import Event, NodeEnded, NodeReady, WorkerLost
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

Place = tuple[int, str]  # generation that its workers were launched for, node


@dataclass(slots=True)
class WorkerSeen:
    """One worker process: `link` is None while it is away; `said` is the reason it gave for leaving."""

    hello: m.WorkerHello
    link: Link | None
    heard: float
    said: str = ""
    closed: float = 0.0  # since when it is away


class Workers:
    """By launch, node and local rank: these never change, whatever generation a worker is in.

    Losing one worker of a node is losing the node's workers.
    """

    def __init__(self, post: Callable[[Event], None], per_node: int, timeout_s: float) -> None:
        self._post = post
        self._per_node = per_node
        self._timeout_s = timeout_s
        self._seen: dict[Place, dict[int, WorkerSeen]] = {}
        self._fenced: set[Place] = set()
        self._lost: set[Place] = set()
        self._killed_to_drain: int = 0  # generation

    # ---- what is heard

    def joined(self, link: Link, hello: m.WorkerHello, ready_at: str = "gate") -> None:
        """A worker reached the gate, or its script reached the library; again after every reconnect.

        `ready_at`: the stage at which a node's workers wait for what comes.
        """
        place = place_of(hello)
        there = self._seen.setdefault(place, {})
        before = there.get(hello.local_rank)
        if before is not None and before.link not in (None, link):
            stale, before.link = before.link, None
            if stale is not None:
                stale.close("the worker connected again")
        there[hello.local_rank] = WorkerSeen(hello, link, link.heard)
        self._lost.discard(place)
        if hello.stage == ready_at and self._all_at(ready_at, there):
            self._post(NodeReady(generation=place[0], node=hello.node))

    def expect(self, generation: int, nodes: Iterable[str], heard: float) -> None:
        """Workers that trained before a restart of ours: they owe a sign of life as if they were heard at `heard`."""
        for node in nodes:
            self._seen[generation, node] = {
                local_rank: WorkerSeen(
                    m.WorkerHello(generation=generation, node=node, local_rank=local_rank, pid=0, stage="training"),
                    link=None,
                    heard=heard,
                )
                for local_rank in range(self._per_node)
            }

    def closed(self, link: Link) -> None:
        seen = self._of(link)
        if seen is not None:
            seen.heard = max(seen.heard, link.heard)
            seen.link = None
            seen.closed = time.monotonic()

    def leaving(self, link: Link, why: str) -> None:
        seen = self._of(link)
        if seen is not None:
            seen.said = why

    def step_ended(self, ended: m.StepEnded) -> None:
        """An agent says that the step of a node is over: none of its workers is left."""
        place = (ended.generation, ended.node)
        there = self._seen.pop(place, {})
        said = {seen.said for seen in there.values() if seen.said}
        failed = bool(ended.exit_code or ended.signal)
        if failed and any(not seen.said for seen in there.values()):
            said = set()  # one of them had more to say, and did not come to it
        if failed and not said and ended.generation == self._killed_to_drain:
            said = {"drained"}
        self._post(
            NodeEnded(
                generation=ended.generation,
                node=ended.node,
                exit_code=ended.exit_code,
                signal=ended.signal,
                said=said.pop() if len(said) == 1 else "",
                detail=ended.detail,
            )
        )

    def expire(self, now: float, amnesty: float) -> None:
        """Report nodes with a worker that is silent too long. Silence before `amnesty` does not count."""
        for place, there in self._seen.items():
            if place in self._lost or place in self._fenced:
                continue
            for local_rank, seen in there.items():
                if seen.link is not None and now - seen.link.heard <= self._timeout_s:
                    continue  # quick: this is asked once a second for every worker
                silent_s = self._silence(seen, now, amnesty)
                if silent_s > self._timeout_s:
                    self._lost.add(place)
                    self._hang_up(there)
                    reason = f"worker {local_rank} gave no sign of life for {silent_s:.1f} s"
                    self._post(WorkerLost(generation=place[0], node=place[1], reason=reason))
                    break

    def moved_on(self, seat: m.Seat, generation: int) -> None:
        """This worker trains in `generation` now."""
        seen = self._seen.get((seat.launch, seat.node), {}).get(seat.local_rank)
        if seen is not None:
            seen.hello = msgspec.structs.replace(seen.hello, generation=generation, stage="training")

    def lose_if_away(self, place: Place, now: float, for_s: float) -> None:
        """Report a node with a worker whose connection is closed for so long, though it had no reason to leave."""
        if place in self._lost or place in self._fenced:
            return
        there = self._seen.get(place, {})
        for local_rank, seen in there.items():
            owes_a_sign = seen.link is None and not seen.said and seen.hello.stage in ("training", "standby")
            if owes_a_sign and seen.closed and now - seen.closed >= for_s:
                self._lost.add(place)
                self._hang_up(there)
                reason = f"worker {local_rank} closed its connection, and collectives with it fail"
                self._post(WorkerLost(generation=place[0], node=place[1], reason=reason))
                return

    # ---- what is asked

    def hello(self, place: Place, local_rank: int) -> m.WorkerHello | None:
        """Of a worker that has said it itself, to us."""
        seen = self._seen.get(place, {}).get(local_rank)
        return seen.hello if seen is not None and seen.hello.pid else None

    def is_leaving(self, place: Place) -> bool:
        """Whether one of its workers said good-bye."""
        return any(seen.said for seen in self._seen.get(place, {}).values())

    def all_elastic(self, places: Iterable[Place]) -> bool:
        """Whether every worker of these places has reached the library and can regroup in place."""
        return all(
            len(there := self._seen.get(place, {})) == self._per_node
            and all(seen.hello.live and seen.hello.stage != "gate" for seen in there.values())
            for place in places
        )

    def at_gate(self, generation: int, node: str) -> tuple[m.WorkerHello, ...]:
        """The hellos of a node's workers by local rank, when all of them are known; else ()."""
        there = self._seen.get((generation, node), {})
        if len(there) < self._per_node:
            return ()
        return tuple(there[local_rank].hello for local_rank in sorted(there))

    def has_trained(self, generation: int) -> bool:
        """Whether a script of this generation reached the library (false: level 0, or not there yet)."""
        return any(
            seen.hello.stage == "training"
            for place, there in self._seen.items()
            if place[0] == generation
            for seen in there.values()
        )

    def all_training(self, generation: int, nodes: Iterable[str]) -> bool:
        """Whether every worker of these nodes has reached the library."""
        return all(
            len(there := self._seen.get((generation, node), {})) == self._per_node
            and all(seen.hello.stage == "training" for seen in there.values())
            for node in nodes
        )

    def is_fenced(self, generation: int, node: str) -> bool:
        return (generation, node) in self._fenced

    # ---- what is said

    def send(self, places: Iterable[Place], message: m.Message) -> None:
        """To all connected workers of these places whose script has reached the library."""
        for place in places:
            for seen in self._seen.get(place, {}).values():
                if seen.link is not None and seen.hello.stage != "gate":
                    seen.link.send(message)

    def send_to(self, launch: int, node: str, local_rank: int, message: m.Message) -> None:
        seen = self._seen.get((launch, node), {}).get(local_rank)
        if seen is not None and seen.link is not None:
            seen.link.send(message)

    def launched(self, generation: int, nodes: Iterable[str]) -> None:
        """New workers are on their way to these nodes: what was fenced there is history."""
        for node in nodes:
            self._fenced.discard((generation, node))
            self._lost.discard((generation, node))

    def fence(self, generation: int, nodes: Iterable[str], reason: str, *, alone: bool = False) -> None:
        """Whoever is left of `generation` on these nodes (none named: everywhere) must write nothing.

        Also of older generations, unless `alone`.
        """
        named = set(nodes)
        for place, there in self._seen.items():
            too_old = place[0] < generation and alone
            if place[0] > generation or too_old or (named and place[1] not in named):
                continue
            self._fenced.add(place)
            for seen in there.values():
                if seen.link is not None:
                    seen.link.send(m.Fenced(generation=place[0], reason=reason))

    def killed_to_drain(self, generation: int) -> None:
        """They are being killed because they cannot be asked to stop yet: their end is no failure of theirs."""
        self._killed_to_drain = generation

    def forget_before(self, generation: int) -> None:
        """Drop what is known of older generations, but for those still connected."""
        for place in [p for p in self._seen if p[0] < generation]:
            if all(seen.link is None for seen in self._seen[place].values()):
                del self._seen[place]
        self._fenced = {place for place in self._fenced if place[0] >= generation}
        self._lost = {place for place in self._lost if place[0] >= generation}

    # ---- inside

    def _all_at(self, stage: str, there: dict[int, WorkerSeen]) -> bool:
        waiting = [seen for seen in there.values() if seen.hello.stage == stage and seen.link is not None]
        return len(waiting) == self._per_node

    def _silence(self, seen: WorkerSeen, now: float, amnesty: float) -> float:
        """Seconds that count. One that left on purpose, or exchanges its process for the script, owes no sign."""
        if seen.link is not None:
            seen.heard = seen.link.heard
        elif seen.hello.stage == "gate":
            return 0.0
        return 0.0 if seen.said else now - max(seen.heard, amnesty)

    def _hang_up(self, there: dict[int, WorkerSeen]) -> None:
        """Whoever comes back from a freeze has to introduce itself again, and is fenced then."""
        for seen in there.values():
            stale, seen.link = seen.link, None
            if stale is not None:
                stale.close("no sign of life")

    def _of(self, link: Link) -> WorkerSeen | None:
        hello = link.hello
        if not isinstance(hello, m.WorkerHello):
            return None
        seen = self._seen.get(place_of(hello), {}).get(hello.local_rank)
        return seen if seen is not None and seen.link is link else None


def place_of(hello: m.WorkerHello) -> Place:
    """Where this process sits, from its start to its end."""
    return hello.launch or hello.generation, hello.node
