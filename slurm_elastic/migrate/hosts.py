"""Which device becomes which new rank: the host map that is best for the objective.

Sums of bytes and inter are one linear assignment, cut into connected parts. max_recv adds a search for its threshold.
Where nodes are counted (span, nodes): an integer program, or for large problems slots and swaps with the gap reported.
Among equal optima a rank stays where the old rank of its number was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_elastic.migrate.assign import NoAssignment, assign
from slurm_elastic.migrate.blocks import assign_in_blocks
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import PLAIN, Key, Problem
from slurm_elastic.migrate.score import fewest, values
from slurm_elastic.migrate.stock import Stock


@dataclass(frozen=True)
class Hosting:
    """`host`: the device (index) of each new rank. `value`: the objective's entries; no map has less than `bound`."""

    host: Ints
    value: tuple[int, ...]
    bound: tuple[int, ...]


def host_map(s: Stock) -> Hosting:
    """The best host map. There must be as many hosts as new ranks."""
    keys = telling(s.problem)
    if not any(name in ("span", "nodes") for key in keys for name, _ in key):
        host = _without_places(s, keys)
        value = values(s, host, s.problem.objective)
        return Hosting(host, value, value)
    from slurm_elastic.migrate.places import best_places

    host, proven = best_places(s, keys)
    value = values(s, host, s.problem.objective)
    return Hosting(host, value, value if proven else _bound(s))


def telling(problem: Problem) -> tuple[Key, ...]:
    """The objective without terms that are the same for every host map; what it leaves open is decided by bytes."""
    nodes = len(np.unique(problem.nodes[problem.hosts])) if len(problem.hosts) else 0
    constant = {"span": not problem.groups or nodes < 2, "nodes": nodes < 2 or not problem.ranks}
    keys = (tuple((k, w) for k, w in key if w and not constant.get(k, False)) for key in problem.objective)
    told = tuple(key for key in keys if key)
    return told if (("bytes", 1),) in told else (*told, *PLAIN)


def _without_places(s: Stock, keys: tuple[Key, ...]) -> Ints:
    if any(name == "max_recv" for key in keys for name, _ in key):
        columns = _with_bottleneck(s, keys)
    else:
        columns = assign_in_blocks(s, [gain(s, key) for key in keys])
    return s.problem.hosts[columns]


def gain(s: Stock, key: Key) -> Any:
    """Sparse, over classes: what of a key's bytes and inter is saved."""
    weights = dict(key)
    total = s.kept if weights.get("bytes") == 1 else s.kept * weights.get("bytes", 0)
    return total + s.kept_in_node * weights["inter"] if weights.get("inter") else total


def dense(s: Stock, key: Key) -> Ints:
    """A key's bytes and inter, ranks x hosts."""
    weights = dict(key)
    total = s.cost * weights.get("bytes", 0) + s.inter * weights.get("inter", 0)
    return s.per_rank(np.asarray(total, np.int64))


def strangeness(problem: Problem) -> Ints:
    """Ranks x hosts: 0 where a rank stays with the device of the old rank of its number, else 1."""
    out = np.ones((problem.ranks, len(problem.hosts)), np.int64)
    column = {int(d): k for k, d in enumerate(problem.hosts)}
    for rank, device in enumerate(problem.previous[: problem.ranks].tolist()):
        if device in column:
            out[rank, column[device]] = 0
    return out


def _with_bottleneck(s: Stock, keys: tuple[Key, ...]) -> Ints:
    """max_recv is at most a threshold: for each threshold the rest is an assignment. The best of all thresholds."""
    at = next(k for k, key in enumerate(keys) if any(name == "max_recv" for name, _ in key))
    weight = dict(keys[at])["max_recv"]
    before = [dense(s, key) for key in keys[:at]]
    mixed = dense(s, keys[at])
    later = [dense(s, key) for key in keys[at + 1 :]]
    cost = s.per_rank(s.cost)
    levels = np.unique(cost)
    low = _first_level(before, cost, levels)
    rest = _extra_weights(keys[at + 1 :])
    floor = _total(mixed, assign([*before, mixed])) if cost.size else 0
    best: tuple[Any, Ints] | None = None
    for level in levels[low:].tolist():
        if best and floor + weight * level > best[0][0]:
            break
        columns = assign([*before, mixed, *later, strangeness(s.problem)], cost <= level)
        top = int(cost[np.arange(len(columns)), columns].max())
        tail = [_total(key, columns) + w * top for key, w in zip(later, rest, strict=True)]
        value = (_total(mixed, columns) + weight * top, *tail)
        if best is None or value < best[0]:
            best = (value, columns)
    return best[1] if best else np.zeros(0, np.int64)


def _extra_weights(keys: tuple[Key, ...]) -> list[int]:
    return [dict(key).get("max_recv", 0) for key in keys]


def _first_level(before: list[Ints], cost: Ints, levels: Ints) -> int:
    """The least threshold (index) that costs nothing in the keys before."""
    wanted = [_total(key, assign(before)) for key in before]

    def good(level: int) -> bool:
        try:
            columns = assign(before or [np.zeros_like(cost)], cost <= levels[level])
        except NoAssignment:
            return False
        return [_total(key, columns) for key in before] == wanted

    low, high = 0, max(0, len(levels) - 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    return low


def _total(matrix: Ints, columns: Ints) -> int:
    return int(matrix[np.arange(len(columns)), columns].sum())


def _bound(s: Stock) -> tuple[int, ...]:
    """No host map has less in any entry: the least of each measure by itself."""
    p = s.problem
    node = p.nodes[p.hosts]
    rooms = [int((node == v).sum()) for v in np.unique(node)]
    least = {"nodes": fewest(rooms, p.ranks), "span": sum(fewest(rooms, len(group)) for group in p.groups)}
    for name in sorted({name for key in p.objective for name, _ in key} - set(least)):
        alone: tuple[Key, ...] = (((name, 1),),)
        least[name] = values(s, _without_places(s, alone), alone)[0]
    return tuple(sum(w * least[name] for name, w in key) for key in p.objective)
