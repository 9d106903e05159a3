"""This process among the workers: process group, device, and the line by which ranks agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.training.consensus import Agreement, MpiAgreement, OneRank, TorchAgreement
from slurm_elastic.training.environment import Ranks
from slurm_elastic.training.meeting import Store, prefixed


@dataclass(frozen=True, slots=True)
class World:
    """`size` workers; this one is `global_rank` and computes on `device`."""

    global_rank: int
    size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    agreement: Agreement


def join_at(store: Store, generation: int, ranks: Ranks, backend: str) -> World:
    """Make the default process group of a generation that meets at `store`. All its workers call this together."""
    device = _device(ranks.local_rank)
    dist.init_process_group(
        backend or _backend(device),
        store=prefixed(store, f"group-{generation}"),
        rank=ranks.global_rank,
        world_size=ranks.world_size,
    )
    return _world(ranks, device, None)


def join(ranks: Ranks | None, communicator: Any, backend: str) -> World:
    """Make the default process group, unless the script did. All workers call this together.

    With an MPI communicator, ranks and agreement are MPI's, and the process group is made through it.
    """
    device = _device(ranks.local_rank if ranks else 0)
    if not dist.is_initialized():
        chosen = backend or _backend(device)
        if ranks is None:
            alone = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(chosen, store=alone, rank=0, world_size=1)
        elif communicator is not None:
            from slurm_elastic.training.mpi import store

            dist.init_process_group(
                chosen, store=store(communicator), rank=ranks.global_rank, world_size=ranks.world_size
            )
        else:
            dist.init_process_group(chosen, rank=ranks.global_rank, world_size=ranks.world_size)
    return _world(ranks or Ranks(), device, communicator)


def provisional(ranks: Ranks) -> World:
    """For a worker that stands by: it is in no group yet."""
    return World(
        global_rank=ranks.global_rank,
        size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        device=_device(ranks.local_rank),
        agreement=OneRank(),
    )


def _world(ranks: Ranks, device: torch.device, communicator: Any) -> World:
    size = dist.get_world_size()
    return World(
        global_rank=dist.get_rank(),
        size=size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        device=device,
        agreement=_agreement(size, communicator),
    )


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def average_gradients(module: torch.nn.Module, world: World, communicator: Any) -> None:
    """Replace every gradient by its mean over all ranks, for modules without DDP or FSDP. Collective."""
    if world.size == 1:
        return
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    for gradient in gradients:
        if communicator is not None and gradient.device.type == "cpu" and gradient.is_contiguous():
            from slurm_elastic.training.mpi import sum_in_place

            sum_in_place(communicator, gradient)
        else:
            dist.all_reduce(gradient)
        gradient.div_(world.size)


def _agreement(size: int, communicator: Any) -> Agreement:
    if size == 1:
        return OneRank()
    return MpiAgreement(communicator) if communicator is not None else TorchAgreement()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
