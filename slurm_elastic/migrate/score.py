"""What a host map amounts to in each measure of an objective."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import Key
from slurm_elastic.migrate.stock import Stock


def received(s: Stock, host: Ints) -> Ints:
    """Bytes each new rank receives."""
    return np.asarray(_at(s, s.kept, host))


def measure(s: Stock, host: Ints, name: str) -> int:
    """bytes, inter, max_recv, span or nodes of a host map (device index per rank)."""
    if name == "inter":
        return int(_at(s, s.kept_in_node, host).sum())
    if name == "bytes":
        return int(received(s, host).sum())
    if name == "max_recv":
        return int(received(s, host).max(initial=0))
    nodes = s.problem.nodes[host]
    if name == "nodes":
        return len(np.unique(nodes))
    return sum(len(set(nodes[list(group)].tolist())) for group in s.problem.groups)


def values(s: Stock, host: Ints, keys: Iterable[Key]) -> tuple[int, ...]:
    """What a host map has in each entry of an objective."""
    return tuple(sum(w * measure(s, host, name) for name, w in key) for key in keys)


def _at(s: Stock, kept: object, host: Ints) -> Ints:
    position = np.full(len(s.problem.devices), -1)
    position[s.problem.hosts] = np.arange(len(s.problem.hosts))
    rows, columns = s.rank_class, s.host_class[position[host]]
    if not len(rows):
        return np.zeros(0, np.int64)
    return s.need[rows] - np.asarray(kept[rows, columns]).ravel()  # type: ignore[index]


def fewest(rooms: list[int], ranks: int) -> int:
    """The smallest number of nodes that have room for so many."""
    count = 0
    for room in sorted(rooms, reverse=True):
        if ranks <= 0:
            break
        ranks, count = ranks - room, count + 1
    return count
