"""Which boxes of a global tensor a rank holds, from how the tensor is spread over a mesh of ranks. Pure arithmetic.

A *spread* is what torch calls DeviceMesh and placements, as plain numbers. Every rank can work out the boxes of every
other one, so a layout needs no communication where one rank knows the mesh.

One place differs from what torch says of itself. FSDP2 over tensor parallelism cuts what tensor parallelism left to a
rank, and writes that as `_StridedShard` on the mesh's first dimension. Read from left to right, as DTensor's own
`full_tensor` does, this gives other rows when they do not divide evenly (7 rows, TP 2, FSDP 3). What a rank holds is
what FSDP2 has cut, so such a cut is taken after the ones that it strides over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from slurm_elastic.migrate.model import Box

Run = tuple[int, int]  # [start, stop) in one dimension of the global tensor


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Dimension `dim` of the tensor is divided over one dimension of the mesh: `Shard`.

    With `factor` > 1 it is first cut in so many bands and each band is divided: `_StridedShard`.
    """

    dim: int
    factor: int = 1


class Spread(msgspec.Struct, frozen=True):
    """A mesh (`ranks` in row-major order, sizes in `mesh`) and one cut per mesh dimension, None where it replicates."""

    ranks: tuple[int, ...]
    mesh: tuple[int, ...]
    cuts: tuple[Cut | None, ...]


class Part(msgspec.Struct, frozen=True):
    """One box, and where it begins in the rank's local tensor."""

    box: Box
    local: tuple[int, ...]


def whole(shape: tuple[int, ...]) -> Box:
    """The box that is the whole tensor."""
    return Box((0,) * len(shape), shape)


def parts_at(shape: tuple[int, ...], spread: Spread, rank: int) -> tuple[Part, ...]:
    """What `rank` holds, in the order of its local tensor. Empty outside the mesh and where nothing is left for it."""
    if rank not in spread.ranks:
        return ()
    return _parts(shape, spread.mesh, spread.cuts, _coordinate(spread.ranks.index(rank), spread.mesh))


def parts_of_all(shape: tuple[int, ...], spread: Spread) -> dict[int, tuple[Part, ...]]:
    """What every rank of the mesh holds."""
    return {
        rank: _parts(shape, spread.mesh, spread.cuts, _coordinate(position, spread.mesh))
        for position, rank in enumerate(spread.ranks)
    }


def local_shape(shape: tuple[int, ...], spread: Spread | None, rank: int) -> tuple[int, ...]:
    """Shape of the rank's local tensor; dimensions that are not cut stay, also where the rank holds nothing."""
    if spread is None:
        return shape
    coordinate = _coordinate(spread.ranks.index(rank), spread.mesh)
    return tuple(
        sum(stop - start for start, stop in runs) for runs in _runs(shape, spread.mesh, spread.cuts, coordinate)
    )


def _coordinate(position: int, mesh: tuple[int, ...]) -> tuple[int, ...]:
    digits = []
    for size in reversed(mesh):
        position, digit = divmod(position, size)
        digits.append(digit)
    return tuple(reversed(digits))


@lru_cache(maxsize=65536)
def _parts(
    shape: tuple[int, ...], mesh: tuple[int, ...], cuts: tuple[Cut | None, ...], coordinate: tuple[int, ...]
) -> tuple[Part, ...]:
    axes = []
    for runs in _runs(shape, mesh, cuts, coordinate):
        lengths = [stop - start for start, stop in runs]
        axes.append(list(zip(runs, itertools.accumulate(lengths, initial=0), strict=False)))
    found = []
    for corner in itertools.product(*axes):
        box = Box(tuple(run[0] for run, _ in corner), tuple(run[1] - run[0] for run, _ in corner))
        if math.prod(box.size):
            found.append(Part(box, tuple(local for _, local in corner)))
    return tuple(found)


def _runs(
    shape: tuple[int, ...], mesh: tuple[int, ...], cuts: tuple[Cut | None, ...], coordinate: tuple[int, ...]
) -> list[list[Run]]:
    """Per dimension of the tensor, the ascending runs that are left for this coordinate."""
    axes: list[list[Run]] = [[(0, size)] for size in shape]
    for place, cut in _in_order(mesh, cuts):
        runs = axes[cut.dim]
        length = sum(stop - start for start, stop in runs)
        kept = _kept(length, cut.factor, mesh[place], coordinate[place])
        axes[cut.dim] = _joined(piece for first, last in kept for piece in _select(runs, first, last))
    return axes


def _in_order(mesh: tuple[int, ...], cuts: tuple[Cut | None, ...]) -> list[tuple[int, Cut]]:
    """Cuts in the order in which they were made; one that strides over all later ones was made after them."""
    order: list[tuple[int, Cut]] = []
    for place in reversed(range(len(cuts))):
        cut = cuts[place]
        if cut is None:
            continue
        later = math.prod(mesh[other] for other, made in order if made.dim == cut.dim)
        if cut.factor > 1 and cut.factor == later:
            order.append((place, Cut(cut.dim)))
        else:
            order.insert(0, (place, cut))
    return order


def _kept(length: int, factor: int, chunks: int, index: int) -> list[Run]:
    """Places of a sequence of `length` that chunk `index` takes, from each of `factor` bands."""
    return [
        (band + first, band + last)
        for band, end in (_chunk(length, factor, number) for number in range(factor))
        for first, last in [_chunk(end - band, chunks, index)]
    ]


def _chunk(length: int, chunks: int, index: int) -> Run:
    """As torch.chunk: all of the same size, rounded up, so that the last may be short or empty."""
    size = -(-length // chunks)
    return min(size * index, length), min(size * (index + 1), length)


def _select(runs: list[Run], first: int, last: int) -> list[Run]:
    """The runs of places [first, last) of the sequence that `runs` make up."""
    found = []
    passed = 0
    for start, stop in runs:
        low, high = max(first, passed), min(last, passed + stop - start)
        if low < high:
            found.append((start + low - passed, start + high - passed))
        passed += stop - start
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
