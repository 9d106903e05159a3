"""What one device holds while state moves: old boxes, new ones as they fill up, and which elements are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping

import torch

from slurm_elastic.errors import MigrationError
from slurm_elastic.migrate.boxes import elements, intersection, merged
from slurm_elastic.migrate.model import Box, Piece, Tensor
from slurm_elastic.migrate.store_boxes import inside, without
from slurm_elastic.migrate.transport_parts import bits

_MANY = 64  # boxes of one new box that were written apart; neighbours are joined then

Key = tuple[str, Box]
Boxes = MutableMapping[Key, torch.Tensor]
Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


class Store:
    """Takes the boxes of `old` over: what is released leaves it, so that memory is free if nobody else refers to it.

    An old box that is also a new one is adopted: the same tensor object, no copy. Other new boxes are allocated when
    they are first written. Elements of a new box count as held once they are marked written.
    """

    def __init__(self, old: Boxes, new: Iterable[Key], tensors: Mapping[str, Tensor], allocate: Allocate) -> None:
        self.old = old
        self.wanted = tuple(new)
        self._tensors = tensors
        self._allocate = allocate
        self._released = 0
        self._old_of: dict[str, list[Box]] = {}
        self._new_of: dict[str, list[Box]] = {}
        for name, box in old:
            self._old_of.setdefault(name, []).append(box)
        for name, box in self.wanted:
            self._new_of.setdefault(name, []).append(box)
        self.new: dict[Key, torch.Tensor] = {key: old[key] for key in self.wanted if key in old}
        self._adopted = frozenset(self.new)
        self._written: dict[Key, list[Box]] = {key: [key[1]] for key in self._adopted}

    def has(self, piece: Piece) -> bool:
        """Whether `read` would find all of it now."""
        name = piece.tensor
        held = [
            *self._old_of.get(name, ()),
            *(part for box in self._new_of.get(name, ()) for part in self._written.get((name, box), ())),
        ]
        return not without([piece.box], held)

    def allocate(self, piece: Piece) -> torch.Tensor:
        """Memory for the piece alone."""
        return self._allocate(piece.size, self._dtype(piece.tensor))

    def read(self, piece: Piece) -> torch.Tensor:
        """The piece's elements: a view where one stored box has them all, else a copy. MigrationError if not held."""
        name, box = piece.tensor, piece.box
        found = [*self._old_parts(name, box), *self._new_parts(name, box)]
        for common, values in found:
            if common == box:
                return values
        whole = self.allocate(piece)
        for common, values in found:
            bits(whole[inside(common, box)]).copy_(bits(values))
        if without([box], [common for common, _ in found]):
            raise MigrationError(f"the plan reads {_named(piece)}, which is not here", tensors=(name,))
        return whole

    def destination(self, piece: Piece) -> list[tuple[Box, torch.Tensor]]:
        """Where the piece's elements go: views into new boxes, which are allocated if they are not yet."""
        found = [
            (common, self._new((piece.tensor, box))[inside(common, box)])
            for box in self._new_of.get(piece.tensor, ())
            if (common := intersection(box, piece.box))
        ]
        if sum(elements(common.size) for common, _ in found) != elements(piece.size):
            raise MigrationError(f"the plan writes {_named(piece)}, which is not wanted here", tensors=(piece.tensor,))
        return found

    def mark_written(self, piece: Piece) -> None:
        for box in self._new_of[piece.tensor]:
            key = (piece.tensor, box)
            if key not in self._adopted and (common := intersection(box, piece.box)):
                written = self._written.setdefault(key, [])
                written.append(common)
                if len(written) > _MANY:
                    written[:] = merged(written)

    def refer(self, piece: Piece) -> None:
        """Copy from old boxes to new ones, or nothing where the box was adopted."""
        values = self.read(piece)
        for common, there in self.destination(piece):
            if not _same(here := values[inside(common, piece.box)], there):
                bits(there).copy_(bits(here))
        self.mark_written(piece)

    def release(self, piece: Piece) -> None:
        key = (piece.tensor, piece.box)
        if key in self._adopted or self.old.pop(key, None) is None:
            raise MigrationError(f"the plan frees {_named(piece)}, which is in use or not here", tensors=(key[0],))
        self._old_of[key[0]].remove(key[1])
        self._released += 1

    def add_empty(self) -> None:
        """New boxes without elements, which no plan mentions."""
        for key in self.wanted:
            if elements(key[1].size) == 0:
                self._new(key)
                self._written[key] = [key[1]]

    def missing(self) -> list[Piece]:
        """What of the new boxes is not written yet."""
        return [
            Piece(name, rest.offset, rest.size)
            for name, box in self.wanted
            if elements(box.size)
            for rest in without([box], self._written.get((name, box), ()))
        ]

    @property
    def old_is_whole(self) -> bool:
        return not self._released

    def holdings(self) -> dict[Key, torch.Tensor]:
        """Everything valid here as one layout of disjoint boxes: old boxes, then what is written of the new ones."""
        held: dict[Key, torch.Tensor] = dict(self.old)
        for (name, box), written in self._written.items():
            if (name, box) in self._adopted:
                continue
            for rest in without(merged(written), self._old_of.get(name, ())):
                held[name, rest] = self.new[name, box][inside(rest, box)]
        return held

    def _old_parts(self, name: str, box: Box) -> list[tuple[Box, torch.Tensor]]:
        return [
            (common, self.old[name, one][inside(common, one)])
            for one in self._old_of.get(name, ())
            if (common := intersection(one, box))
        ]

    def _new_parts(self, name: str, box: Box) -> list[tuple[Box, torch.Tensor]]:
        """What of `box` is written, a whole first: several boxes written next to each other are one to read."""
        parts = []
        for one in self._new_of.get(name, ()):
            written = self._written.get((name, one), ())
            common = intersection(one, box)
            if not written or not common or (name, one) in self._adopted:
                continue
            boxes = (
                [common]
                if not without([common], written)
                else [w for w in (intersection(p, box) for p in written) if w]
            )
            parts += [(part, self.new[name, one][inside(part, one)]) for part in boxes]
        return parts

    def _new(self, key: Key) -> torch.Tensor:
        if key not in self.new:
            self.new[key] = self._allocate(key[1].size, self._dtype(key[0]))
        return self.new[key]

    def _dtype(self, name: str) -> torch.dtype:
        dtype = getattr(torch, self._tensors[name].dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _named(piece: Piece) -> str:
    return f"{piece.tensor} {list(piece.offset)}+{list(piece.size)}"
