"""A message's checksum: the same for the same elements however they lie, another one for any other elements."""

from __future__ import annotations

import pytest
import torch

from slurm_elastic.migrate.checksum import Checksum
from slurm_elastic.migrate.transport_parts import bits

CPU = torch.device("cpu")
SIZES = [(1,), (7,), (64,), (130, 128), (3, 5, 256), (33, 333), (2000, 1024), (1_300_001,)]


def some(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    width = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (*size, width), dtype=torch.uint8, generator=generator).view(dtype).squeeze(-1)


@pytest.mark.parametrize("size", SIZES)
def test_strides_and_places_in_memory_do_not_matter(size: tuple[int, ...]) -> None:
    plain = some(size)
    wide = torch.zeros((*size[:-1], size[-1] + 3))
    wide[..., 1 : 1 + size[-1]] = plain
    turned = plain.transpose(0, -1).contiguous().transpose(0, -1)
    checksum = Checksum(CPU)

    expected = checksum.of([bits(plain)])

    assert checksum.of([bits(wide[..., 1 : 1 + size[-1]])]) == expected
    assert checksum.of([bits(turned)]) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.complex128])
@pytest.mark.parametrize("size", SIZES)
def test_any_changed_bit_is_found(size: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = some(size, dtype)
    checksum = Checksum(CPU)
    before = checksum.of([bits(tensor)])
    flat = tensor.view(-1).view(torch.uint8)
    for place in {0, flat.numel() // 3, flat.numel() - 1}:
        flat[place] ^= 1

        assert checksum.of([bits(tensor)]) != before
        flat[place] ^= 1
    assert checksum.of([bits(tensor)]) == before


def test_order_sizes_and_seed_are_part_of_it() -> None:
    one, other = bits(some((256, 256))), bits(some((256, 256)).flip(0).contiguous())
    checksum = Checksum(CPU)

    sums = {
        checksum.of([one, other]),
        checksum.of([other, one]),
        checksum.of([one]),
        checksum.of([one, other], seed=1),
        checksum.of([one[:128], one[128:], other]),
        checksum.of([torch.cat([one[128:], one[:128]]), other]),
        checksum.of([torch.zeros(3, dtype=torch.uint8)]),
        checksum.of([torch.zeros(4, dtype=torch.uint8)]),
        checksum.of([]),
    }

    assert len(sums) == 9


def test_a_seal_is_never_all_zeros_or_somebody_elses() -> None:
    checksum = Checksum(CPU)
    parts = [bits(some((100,)))]

    assert checksum.fits(checksum.seal(parts, 5), parts, 5)
    assert not checksum.fits(checksum.seal(parts, 5), parts, 6)
    assert not checksum.fits(torch.zeros(2, dtype=torch.int64), parts, 5)
    assert not checksum.fits(torch.zeros(2, dtype=torch.int64), [], 0)
