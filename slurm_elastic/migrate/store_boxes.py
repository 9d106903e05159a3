"""Where a box lies in memory, and what is left of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.migrate.boxes import intersection
from slurm_elastic.migrate.model import Box


def inside(box: Box, frame: Box) -> tuple[slice, ...]:
    """Where `box` lies in an array that holds `frame`."""
    return tuple(
        slice(at - start, at - start + length)
        for at, length, start in zip(box.offset, box.size, frame.offset, strict=True)
    )


def without(boxes: Iterable[Box], taken: Iterable[Box]) -> list[Box]:
    """`boxes` less all elements of `taken`, as disjoint boxes if `boxes` are."""
    left = list(boxes)
    for hole in taken:
        left = [rest for box in left for rest in _less(box, hole)]
    return left


def _less(box: Box, hole: Box) -> list[Box]:
    common = intersection(box, hole)
    if common is None:
        return [box]
    rest = []
    offset, size = list(box.offset), list(box.size)
    for axis in range(len(offset)):
        before = common.offset[axis] - offset[axis]
        after = offset[axis] + size[axis] - (common.offset[axis] + common.size[axis])
        if before:
            rest.append(Box(tuple(offset), (*size[:axis], before, *size[axis + 1 :])))
        if after:
            start = common.offset[axis] + common.size[axis]
            rest.append(Box((*offset[:axis], start, *offset[axis + 1 :]), (*size[:axis], after, *size[axis + 1 :])))
        offset[axis], size[axis] = common.offset[axis], common.size[axis]
    return rest
