"""Placement for large problems: groups on whole nodes by two levels of assignment, and nodes chosen by what they keep.

Exact where a group fills a node (every split would touch more nodes); elsewhere good, with the gap to a bound reported.
"""

from __future__ import annotations

import numpy as np

from slurm_elastic.migrate.assign import assign
from slurm_elastic.migrate.blocks import assign_in_blocks
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import Key
from slurm_elastic.migrate.score import received, values
from slurm_elastic.migrate.stock import Stock

SWAPS = 200  # tried exchanges of a used for an unused node
TOO_MANY = 3_000_000  # entries of group x slot x rank x device


def whole_nodes(s: Stock, keys: tuple[Key, ...]) -> tuple[Ints, bool] | None:
    """Where `span` comes first and all ranks are in groups of one size: groups to slots. None where that does not fit.

    A slot is an aligned run of free hosts in one node. Proven when no node has room for more than one group.
    """
    groups = s.problem.groups
    sizes = {len(group) for group in groups}
    if any(name != "span" for name, _ in keys[0]) or len(sizes) != 1 or 0 in sizes:
        return None
    if sum(len(group) for group in groups) != s.problem.ranks:
        return None
    rest = keys[1:]
    size = sizes.pop()
    node = s.problem.nodes[s.problem.hosts]
    rooms = [np.flatnonzero(node == v) for v in np.unique(node)]
    used = [room for room in rooms if len(room) >= size]
    single = all(len(room) == size for room in used)
    if not rest or any(name not in ("bytes", "inter", "nodes") for key in rest for name, _ in key):
        return None
    if any(name == "nodes" for key in rest for name, _ in key):
        if not single:
            return None  # with one group per node, the number of nodes is the number of groups
        rest = tuple(k for k in (tuple(t for t in key if t[0] != "nodes") for key in rest) if k)
    slots = [room[k : k + size] for room in used for k in range(0, len(room) - size + 1, size)]
    if len(slots) < len(groups) or len(slots) * len(groups) * size > TOO_MANY:
        return None
    return _two_levels(s, [_cost(s, key) for key in rest], slots), single


def _cost(s: Stock, key: Key) -> Ints:
    weights = dict(key)
    return np.asarray(s.cost * weights.get("bytes", 0) + s.inter * weights.get("inter", 0), np.int64)


def _two_levels(s: Stock, costs: list[Ints], slots: list[Ints]) -> Ints:
    """The best order inside each (group, slot), then the best slot of each group. Equal pairs are solved once."""
    groups = s.problem.groups
    seen: dict[tuple[bytes, bytes], tuple[list[int], Ints]] = {}
    totals = [np.zeros((len(groups), len(slots)), np.int64) for _ in costs]
    inside: dict[tuple[int, int], Ints] = {}
    kinds = [s.rank_class[list(group)] for group in groups]
    places = [s.host_class[slot] for slot in slots]
    for g, kind in enumerate(kinds):
        for v, place in enumerate(places):
            key = (kind.tobytes(), place.tobytes())
            if key not in seen:
                blocks = [cost[np.ix_(kind, place)] for cost in costs]
                order = assign(blocks) if blocks else np.arange(len(kind))
                seen[key] = ([int(b[np.arange(len(kind)), order].sum()) for b in blocks], order)
            values, inside[g, v] = seen[key]
            for total, value in zip(totals, values, strict=True):
                total[g, v] = value
    chosen = assign(totals) if totals else np.arange(len(groups))
    out = np.zeros(s.problem.ranks, np.int64)
    for g, group in enumerate(groups):
        out[list(group)] = s.problem.hosts[slots[int(chosen[g])][inside[g, int(chosen[g])]]]
    return out


def chosen_nodes(s: Stock, keys: tuple[Key, ...]) -> Ints:
    """Start from the cheapest map, choose the nodes that keep most, then exchange nodes while that helps."""
    free = _within(s, None)
    node = s.problem.nodes[s.problem.hosts]
    numbers = np.unique(node)
    room = np.array([(node == v).sum() for v in numbers])
    kept = np.zeros(len(numbers), np.int64)
    cost = s.need[s.rank_class] - received(s, free)
    np.add.at(kept, np.searchsorted(numbers, s.problem.nodes[free]), cost)
    order = sorted(range(len(numbers)), key=lambda v: (-room[v], -kept[v], v))
    fewest: list[int] = []
    while sum(room[v] for v in fewest) < s.problem.ranks:
        fewest.append(order[len(fewest)])
    best = min((free, _within(s, numbers[fewest])), key=lambda host: values(s, host, keys))
    if not any(name == "nodes" for key in keys for name, _ in key):
        return best
    tried = 0
    for out_of in reversed(list(fewest)):
        for into in order:
            rest = [v for v in fewest if v != out_of] + [into]
            if tried >= SWAPS or into in fewest or sum(room[v] for v in rest) < s.problem.ranks:
                continue
            tried += 1
            host = _within(s, numbers[rest])
            if values(s, host, keys) < values(s, best, keys):
                best, fewest = host, rest
                break
    return best


def _within(s: Stock, nodes: Ints | None) -> Ints:
    hosts = None if nodes is None else np.flatnonzero(np.isin(s.problem.nodes[s.problem.hosts], nodes))
    return s.problem.hosts[assign_in_blocks(s, [s.kept, s.kept_in_node], hosts)]
