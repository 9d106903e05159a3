"""Smallest possible largest load: demands that may be shared by some suppliers each. Exact, by cuts of a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

Arcs = Sequence[Sequence[int]]  # demand -> suppliers that may serve it


def level(demand: Sequence[int], arcs: Arcs, size: Sequence[int]) -> Fraction:
    """The least L so that suppliers of capacity L x size can serve all demands.

    The answer is a quotient: what only some suppliers may serve, over their size. Start with the largest sum and take
    the bottleneck that the flow shows until there is none.
    """
    best = Fraction(0)
    for d, a in zip(demand, arcs, strict=True):
        room = sum(size[s] for s in a)
        if d * best.denominator > best.numerator * room:
            best = Fraction(d, room)
    everything = sum(demand)
    while everything:
        q = best.denominator
        capacity = [best.numerator * n for n in size]
        flow = Flow([d * q for d in demand], arcs, capacity)
        if flow.value == everything * q:
            return best
        stuck = flow.reachable()
        served = {s for k in stuck for s in arcs[k]}
        best = Fraction(sum(demand[k] for k in stuck), sum(size[s] for s in served))
    return best


class Flow:
    """A largest flow from demands to suppliers. `share[k][s]`: how much of demand k supplier s takes."""

    def __init__(self, demand: Sequence[int], arcs: Arcs, capacity: Sequence[int]) -> None:
        self.arcs = [list(a) for a in arcs]
        self.left = list(demand)
        self.room = list(capacity)
        self.share: list[dict[int, int]] = [dict.fromkeys(a, 0) for a in self.arcs]
        self.users: list[list[int]] = [[] for _ in capacity]
        for k, a in enumerate(self.arcs):
            for s in a:
                self.users[s].append(k)
        self._greedy()
        while self._augment():
            pass
        self.value = sum(demand) - sum(self.left)

    def _greedy(self) -> None:
        for k in sorted(range(len(self.arcs)), key=lambda k: len(self.arcs[k])):
            for s in self.arcs[k]:
                self._move(k, s, min(self.left[k], self.room[s]))

    def _move(self, k: int, s: int, amount: int) -> None:
        self.share[k][s] += amount
        self.left[k] -= amount
        self.room[s] -= amount

    def _augment(self) -> bool:
        """One shortest path from an unserved demand to a supplier with room."""
        came: dict[int, tuple[int, int] | None] = {k: None for k in range(len(self.arcs)) if self.left[k]}
        queue = deque(came)
        seen: set[int] = set()
        while queue:
            k = queue.popleft()
            for s in self.arcs[k]:
                if s in seen:
                    continue
                seen.add(s)
                if self.room[s]:
                    self._push(k, s, came)
                    return True
                for other in self.users[s]:
                    if other not in came and self.share[other][s]:
                        came[other] = (k, s)
                        queue.append(other)
        return False

    def _push(self, k: int, s: int, came: dict[int, tuple[int, int] | None]) -> None:
        path, amount, at, via = [(k, s)], self.room[s], k, came[k]
        while via is not None:
            amount = min(amount, self.share[at][via[1]])
            at = via[0]
            path.append(via)
            via = came[at]
        amount = min(amount, self.left[at])
        self.left[at] -= amount
        self.room[s] -= amount
        for (low, supplier), (_, upper) in zip(path, [*path[1:], (0, -1)], strict=True):
            self.share[low][supplier] += amount
            if upper >= 0:
                self.share[low][upper] -= amount

    def reachable(self) -> list[int]:
        """Demands that an unserved one competes with: together they want more than their suppliers have."""
        found = {k for k in range(len(self.arcs)) if self.left[k]}
        queue = deque(sorted(found))
        while queue:
            for s in self.arcs[queue.popleft()]:
                for other in self.users[s]:
                    if other not in found and self.share[other][s]:
                        found.add(other)
                        queue.append(other)
        return sorted(found)
