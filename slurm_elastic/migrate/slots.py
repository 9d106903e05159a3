"""Placement for large problems: groups on whole nodes by two levels of assignment, and nodes chosen by what they keep.

Exact where a group fills a node (every split would touch more nodes); elsewhere good, with a bound beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slurm_elastic.migrate.assign import assign
from slurm_elastic.migrate.blocks import assign_in_blocks
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import Key
from slurm_elastic.migrate.score import fewest, received, values
from slurm_elastic.migrate.stock import Stock

SWAPS = 200  # tried exchanges of a used for an unused node
TOO_MANY = 3_000_000  # group x slot x its size


def filled_nodes(s: Stock, keys: tuple[Key, ...]) -> Ints | None:
    """The best map where `span` comes first and no node has room for more than one group; None for other problems.

    Then every group has a node of its own, and as many nodes as groups are in use.
    """
    first, rest = keys[0], keys[1:]
    if any(name != "span" for name, _ in first) or any(name == "max_recv" for key in rest for name, _ in key):
        return None
    size = _group_size(s)
    node = s.problem.nodes[s.problem.hosts]
    if size is None or any(int((node == v).sum()) > size for v in np.unique(node)):
        return None
    return _in_slots(s, rest, None)


def good_maps(s: Stock, keys: tuple[Key, ...]) -> Iterator[Ints]:
    """Maps to choose from: the cheapest, on few nodes, and with groups in slots on all or on few nodes."""
    free = _within(s, None)
    yield free
    few = _few_nodes(s, keys, free)
    yield _within(s, few)
    for nodes in (None, few):
        if _group_size(s) is not None:
            slotted = _in_slots(s, keys, nodes)
            if slotted is not None:
                yield slotted


def _group_size(s: Stock) -> int | None:
    """Ranks of each group, if all ranks are in groups of one size."""
    sizes = {len(group) for group in s.problem.groups}
    covered = sum(len(group) for group in s.problem.groups) == s.problem.ranks
    return sizes.pop() if len(sizes) == 1 and covered and 0 not in sizes else None


def _in_slots(s: Stock, keys: tuple[Key, ...], nodes: Ints | None) -> Ints | None:
    """Groups to slots: aligned runs of hosts in one node. None where there are too few, or too many to try."""
    size = _group_size(s) or 1
    node = s.problem.nodes[s.problem.hosts]
    rooms = [np.flatnonzero(node == v) for v in (np.unique(node) if nodes is None else nodes)]
    slots = [room[k : k + size] for room in rooms for k in range(0, len(room) - size + 1, size)]
    count = len(s.problem.groups)
    if len(slots) < count or len(slots) * count * size > TOO_MANY:
        return None
    return _two_levels(s, [_cost(s, key) for key in keys if {"bytes", "inter"} & {name for name, _ in key}], slots)


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
            inner, inside[g, v] = seen[key]
            for total, value in zip(totals, inner, strict=True):
                total[g, v] = value
    chosen = assign(totals) if totals else np.arange(len(groups))
    out = np.zeros(s.problem.ranks, np.int64)
    for g, group in enumerate(groups):
        out[list(group)] = s.problem.hosts[slots[int(chosen[g])][inside[g, int(chosen[g])]]]
    return out


def _few_nodes(s: Stock, keys: tuple[Key, ...], free: Ints) -> Ints:
    """As few nodes as have room, those that keep most under the cheapest map; exchanged while that helps."""
    node = s.problem.nodes[s.problem.hosts]
    numbers = np.unique(node)
    room = [int((node == v).sum()) for v in numbers]
    kept = np.zeros(len(numbers), np.int64)
    np.add.at(kept, np.searchsorted(numbers, s.problem.nodes[free]), s.need[s.rank_class] - received(s, free))
    order = sorted(range(len(numbers)), key=lambda v: (-room[v], -kept[v], v))
    few = order[: fewest(room, s.problem.ranks)]
    best = values(s, _within(s, numbers[few]), keys)
    tried = 0
    for out_of in list(reversed(few)) if any(name == "nodes" for key in keys for name, _ in key) else ():
        for into in order:
            rest = [v for v in few if v != out_of] + [into]
            if tried >= SWAPS or into in few or sum(room[v] for v in rest) < s.problem.ranks:
                continue
            tried += 1
            value = values(s, _within(s, numbers[rest]), keys)
            if value < best:
                best, few = value, rest
                break
    return np.asarray(numbers[sorted(few)])


def _within(s: Stock, nodes: Ints | None) -> Ints:
    hosts = None if nodes is None else np.flatnonzero(np.isin(s.problem.nodes[s.problem.hosts], nodes))
    return s.problem.hosts[assign_in_blocks(s, [s.kept, s.kept_in_node], hosts)]
