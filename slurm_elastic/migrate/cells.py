"""Overlapping boxes cut into disjoint cells: within a cell all elements have the same owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from slurm_elastic.migrate.boxes import Ints, Overlaps, Table, overlaps, table

Row = tuple[int, Sequence[int], Sequence[int], Sequence[int]]


def disjoint(t: Table) -> Table:
    """The same holdings with no two boxes overlapping; `t` itself when that is so already."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    found = overlaps(t, t)
    if len(found.a) == len(t):
        return t
    graph = csr_matrix((np.ones(len(found.a), np.int8), (found.a, found.b)), shape=(len(t), len(t)))
    _, label = connected_components(graph, directed=False)
    order = np.argsort(label, kind="stable")
    bounds = np.flatnonzero(np.diff(label[order])) + 1
    rows: list[Row] = []
    for cluster in np.split(order, bounds):
        pattern = int(t.pattern[cluster[0]])
        if len(cluster) == 1:
            k = int(cluster[0])
            rows.append((pattern, t.lo[k].tolist(), t.hi[k].tolist(), t.owners(k).tolist()))
            continue
        for lo, hi, members in cut(t.lo[cluster], t.hi[cluster]):
            if members:
                owners = np.unique(np.concatenate([t.owners(int(cluster[m])) for m in members]))
                rows.append((pattern, lo, hi, owners.tolist()))
    rows.sort(key=lambda row: (row[0], row[1]))
    return table(rows, t.lo.shape[1])


def cut(lo: Ints, hi: Ints) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """(lo, hi, boxes that cover it) of cells that fill the common hull; equal neighbours are one cell."""
    edges = [np.unique(np.concatenate([lo[:, d], hi[:, d]])) for d in range(lo.shape[1])]
    inside = np.zeros((len(lo), *(len(e) - 1 for e in edges)), bool)
    for k in range(len(lo)):
        where: tuple[slice, ...] = tuple(
            slice(int(np.searchsorted(e, lo[k, d])), int(np.searchsorted(e, hi[k, d]))) for d, e in enumerate(edges)
        )
        inside[k][where] = True
    packed = np.packbits(inside.reshape(len(lo), -1), axis=0).T
    _, first, label = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    members = [np.flatnonzero(inside.reshape(len(lo), -1)[:, f]).tolist() for f in first]
    for begin, end, which in _runs(label.reshape(inside.shape[1:])):
        yield (
            [int(e[b]) for e, b in zip(edges, begin, strict=True)],
            [int(e[b]) for e, b in zip(edges, end, strict=True)],
            members[which],
        )


def _runs(label: Ints) -> Iterator[tuple[list[int], list[int], int]]:
    """Boxes of equal labels: runs of equal rows, axis by axis."""
    if label.ndim == 0:
        yield [], [], int(label)
        return
    changes = np.flatnonzero((label[1:] != label[:-1]).any(axis=tuple(range(1, label.ndim)))) + 1
    bounds = [0, *changes.tolist(), len(label)]
    for begin, end in pairwise(bounds):
        for lo, hi, which in _runs(label[begin]):
            yield [begin, *lo], [end, *hi], which


def uncovered(wanted: Table, pieces: Overlaps) -> list[tuple[int, list[int], list[int]]]:
    """(wanted box, lo, hi) of what no piece covers. `pieces.a` are boxes of `wanted`; pieces are disjoint."""
    covered = np.bincount(pieces.a, weights=pieces.elements.astype(np.float64), minlength=len(wanted)).astype(np.int64)
    out: list[tuple[int, list[int], list[int]]] = []
    for k in np.flatnonzero(covered < wanted.elements).tolist():
        mine = pieces.a == k
        lo = np.concatenate([wanted.lo[k : k + 1], pieces.lo[mine]])
        hi = np.concatenate([wanted.hi[k : k + 1], pieces.hi[mine]])
        out += [(k, low, high) for low, high, members in cut(lo, hi) if members == [0]]
    return out
