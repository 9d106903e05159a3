"""Tables of boxes as arrays: which boxes overlap, found by sorted break points, and small box arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_elastic.migrate.model import Box

Ints = npt.NDArray[np.int64]


def ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def volumes(lo: Ints, hi: Ints) -> Ints:
    """Elements of each box."""
    return np.asarray(np.prod(hi - lo, axis=1, dtype=np.int64))


@dataclass(frozen=True)
class Table:
    """Different boxes, each with its owners.

    Box k lies in pattern `pattern[k]` from `lo[k]` to `hi[k]` (tensors of fewer dimensions are padded with [0, 1)).
    Its owners, ascending, are `owner[start[k]:start[k + 1]]`. No box is empty.
    """

    pattern: Ints
    lo: Ints
    hi: Ints
    start: Ints
    owner: Ints

    def __len__(self) -> int:
        return len(self.pattern)

    @property
    def rows(self) -> Ints:
        """For each entry of `owner` its box."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @property
    def elements(self) -> Ints:
        return volumes(self.lo, self.hi)

    def owners(self, box: int) -> Ints:
        return self.owner[self.start[box] : self.start[box + 1]]

    def incidence(self, owners: int) -> Any:
        """Sparse 0/1 matrix, boxes x owners."""
        from scipy.sparse import csr_matrix

        ones = np.ones(len(self.owner), np.int64)
        return csr_matrix((ones, self.owner, self.start), shape=(len(self), owners))


def table(rows: Sequence[tuple[int, Sequence[int], Sequence[int], Iterable[int]]], dimensions: int) -> Table:
    """From (pattern, lo, hi, owners) rows; owners are sorted, boxes keep their order."""
    n, d = len(rows), max(1, dimensions)
    lo, hi = np.zeros((n, d), np.int64), np.ones((n, d), np.int64)
    owners: list[int] = []
    start = [0]
    for k, (_, low, high, who) in enumerate(rows):
        lo[k, : len(low)], hi[k, : len(high)] = low, high
        owners.extend(sorted(who))
        start.append(len(owners))
    return Table(ints(row[0] for row in rows), lo, hi, ints(start), ints(owners))


@dataclass(frozen=True)
class Overlaps:
    """The common parts of boxes of two tables: box `a[k]` of one and `b[k]` of the other share `lo[k]` to `hi[k]`."""

    a: Ints
    b: Ints
    lo: Ints
    hi: Ints

    @property
    def elements(self) -> Ints:
        return volumes(self.lo, self.hi)


def overlaps(a: Table, b: Table) -> Overlaps:
    """All overlapping pairs, by pattern and a's order. One sweep along one axis per pattern, the others by filter."""
    patterns = int(max(a.pattern.max(initial=-1), b.pattern.max(initial=-1))) + 1
    axis = _sweep_axis(b, patterns)
    extent = np.ones(patterns, np.int64)
    for t in (a, b):
        np.maximum.at(extent, t.pattern, t.hi[np.arange(len(t)), axis[t.pattern]])
    base = np.cumsum(extent) - extent
    a_lo, a_hi = _on_line(a, axis, base)
    b_lo, b_hi = _on_line(b, axis, base)
    order = np.argsort(b_lo, kind="stable")
    reach = np.maximum.accumulate(b_hi[order]) if len(order) else b_hi
    first = np.searchsorted(reach, a_lo, side="right")
    last = np.searchsorted(b_lo[order], a_hi, side="left")
    count = np.maximum(last - first, 0)
    ia = np.repeat(np.arange(len(a)), count)
    ib = order[np.arange(len(ia)) - np.repeat(np.cumsum(count) - count - first, count)]
    lo, hi = np.maximum(a.lo[ia], b.lo[ib]), np.minimum(a.hi[ia], b.hi[ib])
    keep = (lo < hi).all(axis=1)
    return Overlaps(ia[keep], ib[keep], lo[keep], hi[keep])


def _sweep_axis(t: Table, patterns: int) -> Ints:
    """Per pattern the axis along which its boxes start at most different places."""
    best, axis = np.zeros(patterns, np.int64), np.zeros(patterns, np.int64)
    if not len(t):
        return axis
    for d in range(t.lo.shape[1]):
        width = int(t.lo[:, d].max()) + 1
        different = np.bincount(np.unique(t.pattern * width + t.lo[:, d]) // width, minlength=patterns)
        axis[different > best] = d
        best = np.maximum(best, different)
    return axis


def _on_line(t: Table, axis: Ints, base: Ints) -> tuple[Ints, Ints]:
    k = np.arange(len(t))
    along = axis[t.pattern]
    return base[t.pattern] + t.lo[k, along], base[t.pattern] + t.hi[k, along]


# ---- single boxes


def elements(size: Sequence[int]) -> int:
    return math.prod(size)


def intersection(a: Box, b: Box) -> Box | None:
    """What two boxes share; None when that has no elements."""
    lo = tuple(map(max, a.offset, b.offset))
    size = tuple(min(x + n, y + m) - low for x, n, y, m, low in zip(*a, *b, lo, strict=True))
    return Box(lo, size) if all(s > 0 for s in size) else None


def range_of(box: Box, begin: int, end: int) -> Iterator[Box]:
    """Boxes that hold elements [begin, end) of `box`, counted row by row."""
    if begin >= end:
        return
    if end - begin == elements(box.size):
        yield box
        return
    axis = next(k for k, n in enumerate(box.size) if n > 1)
    row = elements(box.size) // box.size[axis]
    first, last = -(-begin // row), end // row
    if first > last:  # within one row
        yield from range_of(_rows(box, axis, last, last + 1), begin - last * row, end - last * row)
        return
    if begin < first * row:
        yield from range_of(_rows(box, axis, first - 1, first), begin - (first - 1) * row, row)
    if first < last:
        yield _rows(box, axis, first, last)
    yield from range_of(_rows(box, axis, last, last + 1), 0, end - last * row)


def _rows(box: Box, axis: int, begin: int, end: int) -> Box:
    offset, size = list(box.offset), list(box.size)
    offset[axis], size[axis] = offset[axis] + begin, end - begin
    return Box(tuple(offset), tuple(size))


def merged(boxes: Iterable[Box]) -> list[Box]:
    """The same elements in fewer boxes: disjoint neighbours are joined, axis by axis from the last. Sorted."""
    found = sorted(boxes)
    if len(found) < 2:
        return found
    for axis in reversed(range(len(found[0].offset))):

        def other(box: Box, axis: int = axis) -> tuple[tuple[int, ...], ...]:
            o, s = box
            return o[:axis], o[axis + 1 :], s[:axis], s[axis + 1 :]

        found.sort(key=lambda box: (other(box), box.offset[axis]))
        joined: list[Box] = []
        for box in found:
            last = joined[-1] if joined else None
            if last and other(last) == other(box) and last.offset[axis] + last.size[axis] == box.offset[axis]:
                joined[-1] = _rows(last, axis, 0, last.size[axis] + box.size[axis])
            else:
                joined.append(box)
        found = joined
    return sorted(found)
