"""Tensors as the bits they are: integer views that any transport can copy, cut and pack, whatever the dtype.

Sender and receiver never tell each other how a message is cut or packed: both derive it from the sizes of its parts,
which the plan fixes. Nothing here may depend on strides, which differ between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ALIGNED = 16  # bytes; every part starts at a multiple of it, so that a buffer can be viewed as any of the integers
DIRECT_BYTES = 512 << 10  # a larger part travels from and to where it lies, if it lies in one piece
PARCEL_BYTES = 8 << 20  # smaller ones share a parcel of about this size


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of integers as wide as the elements. 16 bytes (complex128) become a last dimension of two."""
    width = tensor.element_size()
    if width in _INTEGERS:
        return tensor.view(_INTEGERS[width])
    return tensor.unsqueeze(-1).view(torch.int64)


def size_bytes(part: torch.Tensor) -> int:
    return part.numel() * part.element_size()


def aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def cuts(part: torch.Tensor, most_bytes: int) -> Iterator[torch.Tensor]:
    """Views of at most `most_bytes` (at least one element) that follow each other in the part's element order."""
    if part.numel() == 0:
        return
    if size_bytes(part) <= most_bytes:
        yield part
        return
    first = part.shape[0]
    row_bytes = size_bytes(part) // first
    if row_bytes > most_bytes and part.dim() > 1:
        for row in part.unbind(0):
            yield from cuts(row, most_bytes)
        return
    yield from torch.split(part, max(1, most_bytes // row_bytes))


def place(buffer: torch.Tensor, start: int, part: torch.Tensor) -> torch.Tensor:
    """The bytes of `buffer` from `start` on, in the type and shape of `part`."""
    return buffer[start : start + size_bytes(part)].view(part.dtype).view(part.shape)


class Scratch:
    """One buffer that grows to what is needed and is used again: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int, device: torch.device) -> torch.Tensor:
        if self._buffer.numel() < size or self._buffer.device != device:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        return self._buffer[:size]


class Parcels:
    """The contiguous byte buffers that carry the parts of one message: `buffers`, in order, equal sizes on both ends.

    A large part is its own parcel, from where it lies if that is one piece; small ones share one.
    """

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts = parts
        self._groups = list(_groups(parts))
        self._copied = [len(group) > 1 or not parts[group[0]].is_contiguous() for group in self._groups]
        self.buffers: list[torch.Tensor] = []

    def scratch_bytes(self) -> int:
        return sum(self._size(g) for g, copied in zip(self._groups, self._copied, strict=True) if copied)

    def _size(self, group: Sequence[int]) -> int:
        return sum(aligned(size_bytes(self._parts[index])) for index in group)

    def lay_out(self, scratch: torch.Tensor) -> None:
        """Fill in `buffers`, using `scratch` (of `scratch_bytes`) for what cannot travel from or to where it lies."""
        start = 0
        for group, copied in zip(self._groups, self._copied, strict=True):
            size = self._size(group)
            if copied:
                buffer = scratch[start : start + size]
                start += size
            else:
                buffer = self._parts[group[0]].view(-1).view(torch.uint8)
            # Alone, a part is sent without padding: its other end may send or receive it in place.
            self.buffers.append(buffer if len(group) > 1 else buffer[: size_bytes(self._parts[group[0]])])

    def pack(self) -> None:
        for there, part in self._places():
            there.copy_(part)

    def unpack(self) -> None:
        for there, part in self._places():
            part.copy_(there)

    def _places(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for group, copied, buffer in zip(self._groups, self._copied, self.buffers, strict=True):
            start = 0
            for index in group if copied else ():
                part = self._parts[index]
                yield place(buffer, start, part), part
                start += aligned(size_bytes(part))


Laid = list[tuple[str, Parcels]]  # by peer


def _groups(parts: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    together: list[int] = []
    total = 0
    for index, part in enumerate(parts):
        size = size_bytes(part)
        if size == 0:
            continue
        if size >= DIRECT_BYTES:
            yield [index]
            continue
        if total + size > PARCEL_BYTES and together:
            yield together
            together, total = [], 0
        together.append(index)
        total += aligned(size)
    if together:
        yield together


def lay_out(messages: Sequence[tuple[str, Sequence[torch.Tensor]]], scratch: Scratch, device: torch.device) -> Laid:
    """Parcels of several (peer, parts) with their share of the scratch."""
    laid = [(peer, Parcels(parts)) for peer, parts in messages]
    rest = scratch.take(sum(parcels.scratch_bytes() for _, parcels in laid), device)
    for _, parcels in laid:
        size = parcels.scratch_bytes()
        parcels.lay_out(rest[:size])
        rest = rest[size:]
    return laid


def total_bytes(parts: Sequence[torch.Tensor]) -> int:
    return sum(size_bytes(part) for part in parts)
