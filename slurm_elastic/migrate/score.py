"""What a host map amounts to in each measure of an objective."""

from __future__ import annotations

import numpy as np

from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.stock import Stock


def received(s: Stock, host: Ints) -> Ints:
    """Bytes each new rank receives."""
    return np.asarray(_at(s, s.kept, host))


def measures(s: Stock, host: Ints) -> dict[str, int]:
    """bytes, inter, max_recv, span and nodes of a host map (device index per rank)."""
    nodes = s.problem.nodes[host]
    got = received(s, host)
    return {
        "bytes": int(got.sum()),
        "inter": int(_at(s, s.kept_in_node, host).sum()),
        "max_recv": int(got.max(initial=0)),
        "span": sum(len(np.unique(nodes[list(group)])) for group in s.problem.groups),
        "nodes": len(np.unique(nodes)),
    }


def value_of(s: Stock, host: Ints) -> tuple[int, ...]:
    """The objective's entries, in order."""
    measured = measures(s, host)
    return tuple(sum(w * measured[k] for k, w in key) for key in s.problem.objective)


def _at(s: Stock, kept: object, host: Ints) -> Ints:
    position = np.full(len(s.problem.devices), -1)
    position[s.problem.hosts] = np.arange(len(s.problem.hosts))
    rows, columns = s.rank_class, s.host_class[position[host]]
    if not len(rows):
        return np.zeros(0, np.int64)
    return s.need[rows] - np.asarray(kept[rows, columns]).ravel()  # type: ignore[index]
