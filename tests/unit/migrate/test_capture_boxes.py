"""Boxes from meshes and placements: what torch holds, at every coordinate, also where it does not divide."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_elastic.migrate.capture import part_of, spread_of
from slurm_elastic.migrate.capture_boxes import Cut, Spread, local_shape, parts_at, parts_of_all, whole
from slurm_elastic.migrate.model import Box

R = None


def spread(mesh: tuple[int, ...], *cuts: Cut | None) -> Spread:
    return Spread(tuple(range(math.prod(mesh))), mesh, cuts)


def boxes(shape: tuple[int, ...], how: Spread) -> list[list[Box]]:
    return [[part.box for part in parts] for parts in parts_of_all(shape, how).values()]


def test_chunks_are_rounded_up_and_the_last_ranks_may_have_none() -> None:
    assert boxes((5, 2), spread((4,), Cut(0))) == [
        [Box((0, 0), (2, 2))],
        [Box((2, 0), (2, 2))],
        [Box((4, 0), (1, 2))],
        [],
    ]
    assert local_shape((5, 2), spread((4,), Cut(0)), 3) == (0, 2)


def test_a_replicated_dimension_repeats_boxes_and_ranks_outside_hold_nothing() -> None:
    how = Spread((4, 5, 6, 7), (2, 2), (R, Cut(1)))
    assert boxes((3, 4), how) == [[Box((0, 0), (3, 2))], [Box((0, 2), (3, 2))]] * 2
    assert parts_at((3, 4), how, 0) == ()


def test_scalars_and_tensors_without_elements() -> None:
    assert boxes((), spread((2,), R)) == [[Box((), ())]] * 2
    assert boxes((0, 3), spread((2,), Cut(0))) == [[], []]
    assert whole((2, 3)) == Box((0, 0), (2, 3))


def test_a_fused_matrix_is_held_in_several_boxes() -> None:
    first, second = parts_of_all((12, 2), spread((2,), Cut(0, 3))).values()  # q, k and v, each halved
    assert [part.box.offset[0] for part in first] == [0, 4, 8]
    assert [part.box.offset[0] for part in second] == [2, 6, 10]
    assert [part.local[0] for part in second] == [0, 2, 4]


PLACEMENTS: list[tuple[Placement, ...]] = [
    (Shard(0), Shard(0)),
    (Shard(1), Shard(0)),
    (Replicate(), Shard(1)),
    (_StridedShard(1, split_factor=3), Shard(0)),
    (_StridedShard(0, split_factor=2), Shard(0)),
]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(8, 12), (4, 6)], ids=str)
def test_local_shapes_and_first_offsets_are_torchs_own(
    shape: tuple[int, int], placements: tuple[Placement, ...]
) -> None:
    mesh = (2, 2)
    cuts = [
        Cut(one.dim, int(getattr(one, "split_factor", 1))) if not isinstance(one, Replicate) else None
        for one in placements
    ]
    how = spread(mesh, *cuts)
    for rank, coordinate in enumerate(itertools.product(range(2), range(2))):
        size, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
        assert local_shape(shape, how, rank) == size
        assert parts_at(shape, how, rank)[0].box.offset == offset


@pytest.mark.parametrize("rank", range(6))
@pytest.mark.parametrize("rows", [7, 13, 4])
def test_fsdp_over_tensor_parallelism_holds_what_the_boxes_say_also_where_rows_do_not_divide(
    rank: int, rows: int
) -> None:
    """No peer is needed: each rank cuts its own part. torch's own reading of the placements is wrong for 7 rows."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=6)
    try:
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
        full = torch.arange(rows * 3.0).view(rows, 3)
        module = torch.nn.Linear(3, rows, bias=False)
        cut = distribute_tensor(full, mesh["tp"], [Shard(0)], src_data_rank=None)
        module.weight = torch.nn.Parameter(cut)
        fully_shard(module, mesh=mesh["dp"])
        held = module.weight
        assert isinstance(held, DTensor)
        how = spread_of("weight", held)
        assert how is not None and how.mesh == (3, 2)
        parts = parts_at((rows, 3), how, rank)

        assert tuple(held.to_local().shape) == local_shape((rows, 3), how, rank)
        assert sum(math.prod(part.box.size) for part in parts) == held.to_local().numel()
        for part in parts:
            row, height = part.box.offset[0], part.box.size[0]
            assert torch.equal(part_of(held.to_local(), part), full[row : row + height])
    finally:
        dist.destroy_process_group()


def test_every_element_is_in_exactly_one_box_of_each_replica() -> None:
    for rows, mesh, cuts in itertools.product(
        range(1, 12),
        [(2, 3), (3, 2), (4, 2)],
        [(Cut(0), Cut(0)), (Cut(0, 2), Cut(0)), (Cut(0, 3), Cut(0)), (R, Cut(0)), (Cut(1), Cut(0))],
    ):
        how = spread(mesh, *cuts)
        count = torch.zeros(rows, 5)
        for box in (part.box for parts in parts_of_all((rows, 5), how).values() for part in parts):
            count[box.offset[0] : box.offset[0] + box.size[0], box.offset[1] : box.offset[1] + box.size[1]] += 1
        copies = mesh[0] if cuts[0] is None else 1
        assert torch.equal(count, torch.full((rows, 5), float(copies)))


def test_the_mesh_of_a_slice_names_the_ranks_of_that_slice() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    try:
        mesh: DeviceMesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        held = distribute_tensor(torch.ones(4), mesh["dp"], [Shard(0)], src_data_rank=None)

        assert spread_of("w", held) == Spread((2, 3), (2,), (Cut(0),))
    finally:
        dist.destroy_process_group()
