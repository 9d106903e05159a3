"""Who sends how much: demands shared among the devices that hold the data, so that the busiest sends least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_elastic.migrate.flow import Flow, level


class Demand(NamedTuple):
    """`elements` of `item` bytes each that any device of `who` may send."""

    item: int
    who: tuple[int, ...]
    elements: int


Shares = list[tuple[int, int]]  # (device, elements), in order; they add up to the demand


def share(demands: Sequence[Demand]) -> list[Shares]:
    """For each demand its shares. No device sends more than the least possible plus one element per item size."""
    out: list[Shares] = [[] for _ in demands]
    for part in _connected(demands):
        shared = [k for k in part if len(demands[k].who) > 1]
        for k in part:
            if len(part) == 1 or len(demands[k].who) == 1:
                out[k] = _evenly(demands[k].who, demands[k].elements)
        if len(part) == 1 or not shared:
            continue
        if len(shared) == 1:
            out[shared[0]] = _filled(demands[shared[0]], [demands[k] for k in part if k != shared[0]])
        else:
            for k, shares in zip(part, _balanced([demands[k] for k in part]), strict=True):
                out[k] = shares
    return out


def _evenly(who: Sequence[int], elements: int) -> Shares:
    edges = [elements * j // len(who) for j in range(len(who) + 1)]
    return [(d, b - a) for d, a, b in zip(who, edges, edges[1:], strict=False) if b > a]


def _filled(demand: Demand, fixed: Sequence[Demand]) -> Shares:
    """One demand over loads that nobody else can take: like water, up to one level."""
    load = dict.fromkeys(demand.who, 0)
    for each in fixed:
        load[each.who[0]] += each.item * each.elements
    order = sorted(demand.who, key=lambda d: load[d])
    amount, used = demand.item * demand.elements, 0
    for count in range(1, len(order) + 1):
        used += load[order[count - 1]]
        if count == len(order) or amount + used <= count * load[order[count]]:
            break
    shares = {d: (amount + used - count * load[d]) // (count * demand.item) for d in order[:count]}
    for d in order[: demand.elements - sum(shares.values())]:
        shares[d] += 1
    return [(d, shares[d]) for d in demand.who if shares.get(d)]


def _connected(demands: Sequence[Demand]) -> list[list[int]]:
    """Demands that have devices in common, directly or through others."""
    leader: dict[int, int] = {}

    def find(d: int) -> int:
        while leader[d] != d:
            leader[d] = leader[leader[d]]
            d = leader[d]
        return d

    for demand in demands:
        for d in demand.who:
            leader.setdefault(d, d)
            leader[find(d)] = find(demand.who[0])
    parts: dict[int, list[int]] = {}
    for k, demand in enumerate(demands):
        parts.setdefault(find(demand.who[0]), []).append(k)
    return list(parts.values())


def _balanced(demands: Sequence[Demand]) -> list[Shares]:
    """Devices that may serve the same demands are one supplier. First the flow in bytes, then whole elements."""
    serves: dict[int, list[int]] = {}
    for k, demand in enumerate(demands):
        for d in demand.who:
            serves.setdefault(d, []).append(k)
    alike: dict[tuple[int, ...], list[int]] = {}
    for d in sorted(serves):
        alike.setdefault(tuple(serves[d]), []).append(d)
    suppliers = list(alike.values())
    arcs: list[list[int]] = [[] for _ in demands]
    for s, which in enumerate(alike):
        for k in which:
            arcs[k].append(s)
    size = [len(devices) for devices in suppliers]
    out: list[Shares] = [[] for _ in demands]
    for mine, room in _rooms(demands, arcs, size):
        whole = Flow([demands[k].elements for k in mine], [arcs[k] for k in mine], room)
        if any(whole.left):
            raise ArithmeticError("rounded up, the shares must still carry everything")
        for s, devices in enumerate(suppliers):
            _deal(devices, [(k, whole.share[j].get(s, 0)) for j, k in enumerate(mine)], out)
    return out


def _rooms(
    demands: Sequence[Demand], arcs: Sequence[Sequence[int]], size: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """For each item size its demands, and how many elements each supplier may send: its flow, rounded up."""
    items = sorted({d.item for d in demands})
    if len(items) == 1:
        most = level([d.elements for d in demands], arcs, size)
        yield list(range(len(demands))), [n * math.ceil(most) for n in size]
        return
    amount = [d.item * d.elements for d in demands]
    best = level(amount, arcs, size)
    q = best.denominator
    flow = Flow([a * q for a in amount], arcs, [best.numerator * n for n in size])
    for item in items:
        mine = [k for k, d in enumerate(demands) if d.item == item]
        served = [sum(flow.share[k].get(s, 0) for k in mine) for s in range(len(size))]
        yield mine, [n * -(-total // (item * q * n)) for total, n in zip(served, size, strict=True)]


def _deal(devices: Sequence[int], taken: Sequence[tuple[int, int]], out: list[Shares]) -> None:
    """One after the other: equal parts of all that a supplier took go to its devices."""
    queue = _evenly(devices, sum(n for _, n in taken))
    for k, n in taken:
        while n:
            device, left = queue[0]
            step = min(n, left)
            out[k].append((device, step))
            n -= step
            queue[0] = (device, left - step)
            if left == step:
                queue.pop(0)
