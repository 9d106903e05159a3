"""Putting a real tensor where one on the meta device is, so that whoever refers to it need not be told."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture_names import Place


def install(name: str, place: Place, local: torch.Tensor) -> None:
    """Give the parameter or buffer at `place` its local memory. A parameter stays the same object."""
    old = place.tensor
    real = like(old, local)
    if place.is_buffer:
        place.module._buffers[place.key] = real
        return
    if getattr(old, "_post_accumulate_grad_hooks", None) or old._backward_hooks:
        raise UserMistake(
            f"{name} has hooks, which do not outlast being filled", fix="register them in Parts(wrap=...)"
        )
    new = nn.Parameter(real, requires_grad=old.requires_grad)
    new.__class__ = old.__class__  # type: ignore[assignment]
    new.__dict__.update(old.__dict__)
    torch.utils.swap_tensors(old, new)  # type: ignore[no-untyped-call]


def like(old: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """`local` as what `old` is: itself, or the local part of a DTensor with the same mesh and placements."""
    if not isinstance(old, DTensor):
        return local
    with torch.no_grad():
        return DTensor.from_local(
            local, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride()
        )
