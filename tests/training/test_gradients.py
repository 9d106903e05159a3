"""The gradient of a global batch is the same at every world size, also where shares are uneven or empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.machine.batch import BatchPlan
from slurm_elastic.training.batches import Batch
from tests.training.trainings import network, samples
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

LARGEST = 8
# (global batch, largest micro-batch); 5 is the short batch at an epoch's end, smaller than most worlds.
CASES = {"ddp": ((8, 1), (8, 2), (8, 3), (5, 1)), "fsdp": ((8, 3), (5, 2))}


def batch_of(size: int, world: int, micro: int, rank: int, model: nn.Module) -> Batch:
    return Batch(
        1,
        np.arange(size) * 3 % 61,
        BatchPlan(world, size, micro),
        rank,
        seed=7,
        modules=(model,),
        fetch=lambda step, number: None,
        on_commit=lambda batch: None,
    )


def gradients(model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    inputs, targets = samples()
    model.zero_grad()
    for micro in batch.micro_batches():
        micro.backward(nn.functional.mse_loss(model(inputs[micro.indices]), targets[micro.indices]))
    found = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]


def compare(rank: int) -> None:
    """In each of 8 processes: all worlds from 1 to 8, of the first ranks each."""
    dist.init_process_group("gloo")
    for world in range(1, LARGEST + 1):
        group = dist.new_group(list(range(world)))
        if rank < world:
            for kind in ("ddp", "fsdp"):
                model = wrapped(kind, group)
                for size, micro in CASES[kind]:
                    check(model, batch_of(size, world, micro, rank, model), f"{kind} {world=} {micro=} {size=}")
        dist.barrier()


def wrapped(kind: str, group: dist.ProcessGroup) -> nn.Module:
    model = network("plain")
    if kind == "ddp":
        return DistributedDataParallel(model, process_group=group)
    return fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))


def check(model: nn.Module, batch: Batch, case: str) -> None:
    alone = network("plain")
    expected = gradients(alone, batch_of(batch.size, 1, batch.size, 0, alone))
    for found, wanted in zip(gradients(model, batch), expected, strict=True):
        difference = (found - wanted).abs().max().item()
        assert difference < 1e-12, f"{case}: gradients differ by {difference}"


def test_worlds_of_one_to_eight_have_the_gradient_of_one(tmp_path: Path) -> None:
    world = WorldOfProcesses(LARGEST, compare, log=tmp_path / "log")

    assert world.wait(90) == [0] * LARGEST, (tmp_path / "log").read_text()
