"""What stays and what travels under a host map, and from where: every missing element once, from the best holder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_elastic.migrate.boxes import Ints, elements, ints, range_of, volumes
from slurm_elastic.migrate.model import Box
from slurm_elastic.migrate.senders import Demand, share
from slurm_elastic.migrate.stock import Stock

LITTLE = 32  # a cut may move by one share in so many
FAR_ABOVE = 2  # forwarding is used where it cuts the largest load to at most one in this many


@dataclass(frozen=True)
class Rows:
    """Cells by device: box `lo[k]` to `hi[k]` of the tensors [first, last) of a pattern, on or for device `target`."""

    pattern: Ints
    first: Ints
    last: Ints
    lo: Ints
    hi: Ints
    target: Ints

    def __len__(self) -> int:
        return len(self.pattern)

    @property
    def elements(self) -> Ints:
        return volumes(self.lo, self.hi) * (self.last - self.first)


@dataclass(frozen=True)
class Transfers(Rows):
    """Rows that travel from device `source`. `hop`: 0 from an old holder; n: a fresh copy sent on, received as n - 1.

    `chained`: it is received to be sent on, or sent on.
    """

    source: Ints
    hop: Ints
    chained: npt.NDArray[np.bool_]


class Movement(NamedTuple):
    """`stays`: what devices hold already; `travels`: what they get; `loads`: bytes each device sends."""

    stays: Rows
    travels: Transfers
    loads: Ints


class _Missing(NamedTuple):
    rows: Rows
    piece: Ints
    cell: Ints  # of the old layout


def movement(s: Stock, host: Ints) -> Movement:
    """Who refers to what and who sends what to whom, for a host map (device index per new rank)."""
    stays, missing = _sorted_out(s, host)
    direct = _served(s, missing)
    loads = sent(s, direct)
    if len(missing.piece) > 1:
        chained = _chained(s, missing, int(loads.max(initial=0)))
        if chained is not None:
            lower = sent(s, chained)
            if int(lower.max(initial=0)) * FAR_ABOVE <= int(loads.max(initial=0)):
                return Movement(stays, chained, lower)
    return Movement(stays, direct, loads)


def _sorted_out(s: Stock, host: Ints) -> tuple[Rows, _Missing]:
    p, count = s.pieces, np.diff(s.want.start)
    piece = np.repeat(np.arange(len(p.a)), count[p.a])
    begin = np.repeat(np.cumsum(count[p.a]) - count[p.a], count[p.a])
    rank = s.want.owner[s.want.start[p.a[piece]] + np.arange(len(piece)) - begin]
    target = host[rank] if len(rank) else rank
    devices = len(s.problem.devices)
    held = s.have.rows * devices + s.have.owner
    wanted = p.b[piece] * devices + target
    at = np.searchsorted(held, wanted)
    here = (at < len(held)) & (held[np.minimum(at, len(held) - 1)] == wanted) if len(held) else np.zeros(0, bool)
    pattern = s.want.pattern[p.a[piece]]
    names = ints(len(each.names) for each in s.problem.patterns)
    last = names[pattern] if len(pattern) else pattern
    rows = Rows(pattern, np.zeros_like(pattern), last, p.lo[piece], p.hi[piece], target)
    gone = ~here
    return _take(rows, here), _Missing(_take(rows, gone), piece[gone], p.b[piece][gone])


def _take(rows: Rows, which: Ints | npt.NDArray[np.bool_]) -> Rows:
    return Rows(*(column[which] for column in vars(rows).values()))


def _chained(s: Stock, missing: _Missing, direct: int) -> Transfers | None:
    """Of targets that need the same from the same holders only the first is served by these; each serves the next.

    None where that is clearly not far below `direct`, the largest load without it.
    """
    _, place, sole = _suppliers(s, missing)
    node = s.problem.nodes[missing.rows.target]
    far = ~_in_node(s, missing)
    order = np.lexsort((missing.rows.target, node, far, place, missing.piece))
    kind = np.stack([missing.piece, place, far & s.problem.near])[:, order]
    same = (kind[:, 1:] == kind[:, :-1]).all(axis=0)
    again = np.concatenate([[False], same])
    if not same.any():
        return None
    rest, onward = _take(missing.rows, order[again]), missing.rows.target[order[np.flatnonzero(again) - 1]]
    alone = order[~again & (sole[order] >= 0)]
    least = _load(s, rest, onward) + _load(s, _take(missing.rows, alone), sole[alone])
    if least.max(initial=0) * FAR_ABOVE > direct:
        return None
    position = np.arange(len(order))
    head = np.maximum.accumulate(np.where(again, 0, position))
    more = np.zeros(len(order), bool)
    more[:-1] = same
    first = _Missing(_take(missing.rows, order[~again]), missing.piece[order[~again]], missing.cell[order[~again]])
    heads = _served(s, first, more[~again])
    return Transfers(
        **{name: np.concatenate([column, vars(rest)[name]]) for name, column in list(vars(heads).items())[:6]},
        source=np.concatenate([heads.source, onward]),
        hop=np.concatenate([heads.hop, (position - head)[again]]),
        chained=np.concatenate([heads.chained, np.ones(len(rest), bool)]),
    )


def _in_node(s: Stock, missing: _Missing) -> npt.NDArray[np.bool_]:
    """Rows whose target's node has a holder."""
    nodes = s.problem.nodes
    count = int(nodes.max()) + 1
    there = np.unique(s.have.rows * count + nodes[s.have.owner])
    return np.isin(missing.cell * count + nodes[missing.rows.target], there)


def _suppliers(s: Stock, missing: _Missing) -> tuple[list[tuple[int, ...]], Ints, Ints]:
    """(sets of devices, for each row its set, for each row the sole device or -1)."""
    count = np.diff(s.have.start)[missing.cell] if len(missing.cell) else missing.cell
    sole = np.where(count == 1, s.have.owner[s.have.start[missing.cell]], -1) if len(missing.cell) else missing.cell
    sets: dict[tuple[int, ...], int] = {}
    place = sole.copy()
    devices = len(s.problem.devices)
    shared = np.flatnonzero(sole < 0)
    target_node = s.problem.nodes[missing.rows.target] if s.problem.near else np.zeros(len(sole), np.int64)
    key = missing.cell * (int(target_node.max(initial=0)) + 1) + target_node
    unique, first, label = np.unique(key[shared], return_index=True, return_inverse=True)
    found = np.zeros(len(unique), np.int64)
    for k, at in enumerate(shared[first].tolist()):
        owners = s.have.owners(int(missing.cell[at]))
        if s.problem.near:
            local = owners[s.problem.nodes[owners] == target_node[at]]
            owners = local if len(local) else owners
        found[k] = devices + sets.setdefault(tuple(owners.tolist()), len(sets))
    if len(shared):
        place[shared] = found[label]
    return list(sets), place, sole


def _served(s: Stock, missing: _Missing, chained: npt.NDArray[np.bool_] | None = None) -> Transfers:
    """Every row from its sole holder, or shared out so that the largest load is least."""
    sets, place, sole = _suppliers(s, missing)
    rows, source = missing.rows, sole.copy()
    flags = np.zeros(len(rows), bool) if chained is None else chained
    devices = len(s.problem.devices)
    item = ints(each.item for each in s.problem.patterns)[rows.pattern] if len(rows) else rows.pattern
    order = np.lexsort((rows.pattern, rows.target, place, item))
    kind = np.stack([item[order], place[order]], axis=1) if len(order) else np.zeros((0, 2), np.int64)
    bounds = [0, *(np.flatnonzero((kind[1:] != kind[:-1]).any(axis=1)) + 1).tolist(), len(order)]
    amount, starts = rows.elements, ints(bounds[:-1])
    if not len(order):
        return Transfers(**vars(rows), source=source, hop=source, chained=flags)
    demands = [
        Demand(size, (where,) if where < devices else sets[where - devices], total)
        for (size, where), total in zip(
            kind[starts].tolist(), np.add.reduceat(amount[order], starts).tolist(), strict=True
        )
    ]
    extra: list[_Part] = []
    whole = np.ones(len(rows), bool)
    for (a, b), shares in zip(pairwise(bounds), share(demands), strict=True):
        mine = order[a:b]
        if len(shares) == 1:
            source[mine] = shares[0][0]
            continue
        ends = np.cumsum(amount[mine])
        cuts = np.cumsum(ints(n for _, n in shares))
        if not s.problem.balanced:
            cuts = _at_tensors(cuts, ends, amount[mine], rows.last[mine] - rows.first[mine])
        begin = np.searchsorted(cuts, ends - amount[mine], side="right")
        final = np.searchsorted(cuts, ends - 1, side="right")
        source[mine] = ints(d for d, _ in shares)[begin]
        for k in np.flatnonzero(begin != final).tolist():
            row, start, n = int(mine[k]), int(ends[k] - amount[mine[k]]), int(amount[mine[k]])
            whole[row] = False
            edges = [0, *(cut - start for cut in cuts[begin[k] : final[k]].tolist()), n]
            for (device, _), low, high in zip(shares[begin[k] :], edges, edges[1:], strict=False):
                extra += [_Part(row, device, *piece) for piece in _stretch(rows, row, low, high)]
    hop = np.zeros(int(whole.sum()), np.int64)
    plain = Transfers(**vars(_take(rows, whole)), source=source[whole], hop=hop, chained=flags[whole])
    return _with_parts(plain, rows, extra, flags) if extra else plain


class _Part(NamedTuple):
    """A device's part of a row: a box of tensors [first, last)."""

    row: int
    device: int
    first: int
    last: int
    box: Box


def _at_tensors(cuts: Ints, ends: Ints, amount: Ints, tensors: Ints) -> Ints:
    """Cuts moved to the nearest border between tensors where that changes shares by little: fewer, larger pieces."""
    row = np.minimum(np.searchsorted(ends, cuts, side="right"), len(ends) - 1)
    size = amount[row] // tensors[row]
    start = ends[row] - amount[row]
    near = start + (cuts - start + size // 2) // size * size
    moved = np.where(np.abs(near - cuts) * LITTLE <= cuts[-1] // len(cuts), near, cuts)
    return np.asarray(np.append(moved[:-1], cuts[-1]))


def _stretch(rows: Rows, row: int, low: int, high: int) -> Iterator[tuple[int, int, Box]]:
    """Elements [low, high) of a row, counted tensor by tensor: (first tensor, last, box)."""
    if low >= high:
        return
    lo, base = tuple(rows.lo[row].tolist()), int(rows.first[row])
    box = Box(lo, tuple((rows.hi[row] - rows.lo[row]).tolist()))
    size = elements(box.size)
    first, last = -(-low // size), high // size
    if first > last:
        yield from ((base + last, base + first, part) for part in range_of(box, low - last * size, high - last * size))
        return
    if low < first * size:
        yield from ((base + first - 1, base + first, part) for part in range_of(box, low - (first - 1) * size, size))
    if first < last:
        yield base + first, base + last, box
    if high > last * size:
        yield from ((base + last, base + last + 1, part) for part in range_of(box, 0, high - last * size))


def _with_parts(plain: Transfers, rows: Rows, extra: list[_Part], flags: npt.NDArray[np.bool_]) -> Transfers:
    row = ints(each.row for each in extra)
    lo = np.array([each.box.offset for each in extra], np.int64)
    size = np.array([each.box.size for each in extra], np.int64)
    return Transfers(
        np.concatenate([plain.pattern, rows.pattern[row]]),
        np.concatenate([plain.first, ints(each.first for each in extra)]),
        np.concatenate([plain.last, ints(each.last for each in extra)]),
        np.concatenate([plain.lo, lo]),
        np.concatenate([plain.hi, lo + size]),
        np.concatenate([plain.target, rows.target[row]]),
        np.concatenate([plain.source, ints(each.device for each in extra)]),
        np.concatenate([plain.hop, np.zeros(len(row), np.int64)]),
        np.concatenate([plain.chained, flags[row]]),
    )


def bytes_of(s: Stock, t: Rows) -> Ints:
    """Bytes of each row."""
    item = ints(each.item for each in s.problem.patterns)
    return t.elements * item[t.pattern] if len(t) else t.elements


def sent(s: Stock, t: Transfers) -> Ints:
    """Bytes each device sends."""
    return _load(s, t, t.source)


def _load(s: Stock, rows: Rows, source: Ints) -> Ints:
    out = np.zeros(len(s.problem.devices), np.int64)
    np.add.at(out, source, bytes_of(s, rows))
    return out
