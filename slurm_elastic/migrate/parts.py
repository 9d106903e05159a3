"""The level-2 entry: the user says how the training is built, we build it anew for every world and fill it.

`build(world)` runs on torch's meta device: shapes, device meshes and names, but no memory and no values. Then every
tensor is made real *in place* (`torch.utils.swap_tensors`): the parameter objects stay the same, so the optimizer and
FSDP2, which refer to them, need not be told. Two ways lead from there to a training that can run:

    parts_start.start   the first time: values from each module's `reset_parameters`
    parts_fill.fill     after a transition: values that other ranks or this one had

A module that is wrapped by values (DDP looks at them when it is made) is given by `wrap`, which runs last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture_names import Objects, Stateful, modules

W = TypeVar("W")


@dataclass(slots=True)
class Parts:
    """What a training is made of. Names in the state: `model`, `optimizer`, `scheduler`, and the keys of `extra`.

    `wrap`: makes what the step loop calls of the finished model, such as
    `lambda model: DistributedDataParallel(model, init_sync=False)`. `initialise`: called, for the first values, on
    each module below the ones that own parameters, after its `reset_parameters`; it sees whole tensors on the CPU.
    `buffers`: called on each module with non-persistent buffers (tables that `build` computed, which the meta device
    cannot) to compute them again; a module's own method `reset_buffers` does as well. `data_parallel`: this rank's
    place among those that share a global batch, and their number; None: every rank computes on samples of its own.
    Ranks of one tensor-parallel group, or of one pipeline, have the same place.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Stateful | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    wrap: Callable[[nn.Module], nn.Module] | None = None
    initialise: Callable[[nn.Module], object] | None = None
    buffers: Callable[[nn.Module], object] | None = None
    data_parallel: tuple[int, int] | None = None

    def objects(self) -> dict[str, object]:
        """By name, as `capture` takes them."""
        named = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {name: value for name, value in {**named, **self.extra}.items() if value is not None}


def construct(build: Callable[[W], Parts], world: W) -> Parts:
    """Call the user's function on the meta device. Collective where `build` is: device meshes, process groups."""
    try:
        with torch.device("meta"):
            parts = build(world)
    except (RuntimeError, NotImplementedError) as failed:
        if "meta" not in str(failed):
            raise
        raise UserMistake(
            f"build(world) needs the values of a tensor, and there are none yet: {failed}",
            fix="give DDP as Parts(wrap=...); make tensors whose values build needs with device='cpu'",
        ) from failed
    if not isinstance(parts, Parts):
        raise UserMistake(f"build(world) returned a {type(parts).__name__}", fix="return Parts(model, optimizer, ...)")
    _refuse_lost_values(Objects(parts.objects()))
    return parts


def _refuse_lost_values(objects: Objects) -> None:
    """Plain tensors made on the meta device have lost their values, and nobody can tell what they were."""
    for own, model in objects.models.items():
        for name, module in modules(model):
            if isinstance(module, DistributedDataParallel):
                raise UserMistake(f"{own} is wrapped in DDP already", fix="give DDP as Parts(wrap=...)")
            for key, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value.is_meta:
                    raise UserMistake(
                        f"{own}: module {name or own!r} keeps the tensor {key!r} without registering it",
                        fix=f"use register_buffer({key!r}, ..., persistent=False), and see Parts(buffers=...)",
                    )
