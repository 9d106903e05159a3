"""Which device becomes which new rank: the host map that is best for the objective.

Sums of bytes and inter are one linear assignment, cut into connected parts. max_recv adds a search for its threshold.
Where nodes are counted (span, nodes): an integer program, or for large problems slots and swaps with the gap reported.
Among equal optima a rank stays where the old rank of its number was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_elastic.migrate.allowed import best_allowed
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
        return best_allowed(s, keys, None)
    return s.problem.hosts[assign_in_blocks(s, [gain(s, key) for key in keys])]


def gain(s: Stock, key: Key) -> Any:
    """Sparse, over classes: what of a key's bytes and inter is saved."""
    weights = dict(key)
    total = s.kept if weights.get("bytes") == 1 else s.kept * weights.get("bytes", 0)
    return total + s.kept_in_node * weights["inter"] if weights.get("inter") else total


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
