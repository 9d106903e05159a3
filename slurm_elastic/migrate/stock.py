"""What each new rank needs and what each device already has of it, in bytes; ranks and devices that are alike are one.

Cost of new rank i on device d: bytes it needs minus bytes of it that d holds. With `inter`, minus what d's node holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slurm_elastic.migrate.boxes import Ints, Overlaps, Table, elements, ints, overlaps
from slurm_elastic.migrate.cells import disjoint, uncovered
from slurm_elastic.migrate.model import Piece
from slurm_elastic.migrate.problem import Problem


@dataclass(frozen=True)
class Stock:
    """Disjoint cells of both layouts and what they share.

    `rank_class`: class of each new rank; `host_class`: class of each host (index into `problem.hosts`). Ranks of a
    class need the same; hosts of a class are in one node and hold the same.
    """

    problem: Problem
    have: Table
    want: Table
    pieces: Overlaps  # a: cell of `want`, b: cell of `have`
    rank_class: Ints
    host_class: Ints

    @cached_property
    def ranks_of(self) -> list[Ints]:
        return members(self.rank_class)

    @cached_property
    def hosts_of(self) -> list[Ints]:
        return members(self.host_class)

    @cached_property
    def class_node(self) -> Ints:
        """Node of each host class."""
        p = self.problem
        return p.nodes[p.hosts[ints(int(hosts[0]) for hosts in self.hosts_of)]] if len(p.hosts) else p.hosts

    @cached_property
    def _shared(self) -> Any:
        """Bytes shared by (class of ranks, cell of `have`), sparse."""
        from scipy.sparse import csr_matrix

        p = self.pieces
        value = p.elements * self.problem.weight[self.want.pattern[p.a]] if len(p.a) else p.elements
        wanted = _of_classes(self.want, self.rank_class, self.ranks_of)
        return wanted @ csr_matrix((value, (p.a, p.b)), shape=(len(self.want), len(self.have)))

    @cached_property
    def kept(self) -> Any:
        """Bytes a rank keeps, sparse: rank class x host class."""
        position = np.full(len(self.problem.devices), -1)
        position[self.problem.hosts] = self.host_class
        held = _of_classes(self.have, position, [self.problem.hosts[hosts] for hosts in self.hosts_of])
        return (self._shared @ held.T).tocsr()

    @cached_property
    def kept_in_node(self) -> Any:
        """Bytes a rank needs that the host's node holds, sparse: rank class x host class."""
        nodes = self.problem.nodes
        rows = self.have.rows
        from scipy.sparse import csr_matrix

        count = int(nodes.max(initial=-1)) + 1
        holds = csr_matrix((np.ones(len(rows), np.int64), (rows, nodes[self.have.owner])), (len(self.have), count))
        holds.data[:] = 1
        return (self._shared @ holds).tocsc()[:, self.class_node].tocsr()

    @cached_property
    def need(self) -> Ints:
        """Bytes a rank of each class needs."""
        size = self.want.elements * self.problem.weight[self.want.pattern] if len(self.want) else self.want.elements
        total = np.zeros(self.problem.ranks, np.int64)
        np.add.at(total, self.want.owner, size[self.want.rows])
        return total[ints(int(ranks[0]) for ranks in self.ranks_of)]

    @cached_property
    def cost(self) -> Ints:
        """Dense, rank class x host class: bytes to receive."""
        return np.asarray(self.need[:, None] - self.kept.toarray())

    @cached_property
    def inter(self) -> Ints:
        """Dense: bytes to fetch from other nodes."""
        return np.asarray(self.need[:, None] - self.kept_in_node.toarray())

    def per_rank(self, dense: Ints) -> Ints:
        """A matrix over classes spread to ranks x hosts."""
        return dense[np.ix_(self.rank_class, self.host_class)]


def _of_classes(t: Table, label: Ints, owners: list[Ints]) -> Any:
    """Sparse 0/1, classes x boxes: what the first owner of each class has."""
    from scipy.sparse import csr_matrix

    first = ints(int(mine[0]) for mine in owners)
    kind = label[t.owner]
    chosen = kind >= 0
    chosen[chosen] = first[kind[chosen]] == t.owner[chosen]
    place = kind[chosen], t.rows[chosen]
    return csr_matrix((np.ones(len(place[0]), np.int64), place), shape=(len(owners), len(t)))


def stock(problem: Problem) -> Stock:
    have, want = disjoint(problem.old), disjoint(problem.new)
    pieces = overlaps(want, have)
    held = have.incidence(len(problem.devices)).T.tocsr()[problem.hosts]
    return Stock(
        problem,
        have,
        want,
        pieces,
        _alike(want.incidence(problem.ranks).T.tocsr()),
        _alike(held, problem.nodes[problem.hosts] if len(problem.hosts) else ()),
    )


def _alike(matrix: Any, also: Sequence[int] | Ints = ()) -> Ints:
    """Rows with the same columns (and the same `also`) get the same number, counted by first appearance."""
    number: dict[tuple[bytes, int], int] = {}
    matrix.sort_indices()
    start, column = matrix.indptr.tolist(), matrix.indices
    out = np.zeros(matrix.shape[0], np.int64)
    for k in range(matrix.shape[0]):
        key = (column[start[k] : start[k + 1]].tobytes(), int(also[k]) if len(also) else 0)
        out[k] = number.setdefault(key, len(number))
    return out


def members(label: Ints) -> list[Ints]:
    """Positions of each label 0, 1, .., ascending."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if len(label) else []


def lost(s: Stock) -> tuple[Piece, ...]:
    """What some new rank needs and nobody alive holds, as boxes; exactly that."""
    found = []
    for cell, lo, hi in uncovered(s.want, s.pieces):
        pattern = s.problem.patterns[int(s.want.pattern[cell])]
        d = len(pattern.shape)
        size = tuple(h - low for low, h in zip(lo[:d], hi[:d], strict=True))
        assert elements(size)
        found += [Piece(name, tuple(lo[:d]), size) for name in pattern.names]
    return tuple(sorted(found, key=lambda piece: (piece.tensor, piece.offset)))


def cost_matrix(s: Stock) -> tuple[tuple[int | None, ...], ...]:
    """Bytes each new rank lacks on each device, in the devices' order; None where it cannot be hosted."""
    column = {int(d): k for k, d in enumerate(s.problem.hosts)}
    dense = s.per_rank(s.cost).tolist()
    return tuple(tuple(row[column[d]] if d in column else None for d in range(len(s.problem.devices))) for row in dense)
