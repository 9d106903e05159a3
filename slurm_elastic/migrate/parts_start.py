"""The first values of a training: the same at every world size and however the tensors are divided.

Module by module: its tensors are made whole on the CPU, `reset_parameters` is called with a seed made of the run's
seed and the module's name, and each rank keeps its part. So no more than one module's tensors are whole at a time, and
nothing is sent. The modules that are treated as one are the topmost that own parameters themselves (a Linear, an
attention block; the whole model, if the model itself owns a parameter).

A tied tensor gets the values of the module whose name comes first. Tensors that `build` made real (with
device="cpu") keep their values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture import dtype_name, local_of, part_of, spread_of
from slurm_elastic.migrate.capture_boxes import Part, parts_at, whole
from slurm_elastic.migrate.capture_names import Objects, Place, modules, places
from slurm_elastic.migrate.parts import Parts
from slurm_elastic.migrate.parts_buffers import is_unset, unset
from slurm_elastic.migrate.parts_fill import finish
from slurm_elastic.migrate.parts_place import install

Initialise = Callable[[nn.Module], object]
Done = dict[int, tuple[torch.Tensor, torch.Tensor]]  # before and after, by the id of what was there before


def start(parts: Parts, seed: int, rank: int, device: torch.device) -> None:
    """Make the parts real with first values, ready to run. Not collective, unless `parts.wrap` is.

    Raises UserMistake naming the module whose `reset_parameters` is missing or leaves a tensor without values. The
    generator of the caller is as before.
    """
    before = torch.get_rng_state()
    try:
        for own, model in Objects(parts.objects()).models.items():
            done: Done = {}
            for name, unit in sorted(units(model), key=lambda one: one[0]):
                _start_unit(f"{own}.{name}" if name else own, unit, seed, rank, device, parts.initialise, done)
            _move_real(own, model, device, done)
    finally:
        torch.set_rng_state(before)
    finish(parts, device)


def units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The topmost modules that own tensors of the state themselves."""
    covered: set[int] = set()
    for name, module in modules(model):
        if id(module) in covered:
            continue
        if any(place.is_persistent for place in places(module).values() if place.module is module):
            covered.update(id(inner) for inner in module.modules())
            yield name, module


def _start_unit(
    name: str,
    unit: nn.Module,
    seed: int,
    rank: int,
    device: torch.device,
    initialise: Initialise | None,
    done: Done,
) -> None:
    kept = [(key, place, place.tensor) for key, place in places(unit).items() if place.is_persistent]
    scratch: dict[int, torch.Tensor] = {}
    for _, place, tensor in kept:
        if id(tensor) not in scratch:
            scratch[id(tensor)] = _whole_copy(tensor)
        _store(place, scratch[id(tensor)])
    try:
        with torch.no_grad(), torch.device("cpu"):
            _reset(name, unit, seed, initialise)
        values = {id(tensor): place.tensor.detach() for _, place, tensor in reversed(kept)}
    finally:
        for _, place, tensor in kept:
            _store(place, tensor)
    for key, place, tensor in kept:
        identity = id(tensor)
        if identity not in done and tensor.is_meta:
            _check_set(f"{name}.{key}", place, values[identity])
            install(f"{name}.{key}", place, _local_part(tensor, values[identity], rank, device))
            done[identity] = (tensor, place.tensor)
        elif place.is_buffer and identity in done:
            place.module._buffers[place.key] = done[identity][1]


def _reset(name: str, unit: nn.Module, seed: int, initialise: Initialise | None) -> None:
    """Inner modules first, as when they are constructed."""
    for inner, module in reversed(list(modules(unit, name))):
        torch.default_generator.manual_seed(_mixed(seed, inner))
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is not None:
            reset()
        if initialise is not None:
            initialise(module)


def _whole_copy(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_meta and not isinstance(tensor, DTensor):
        whole_copy = tensor.detach().to("cpu", copy=True)
    else:
        whole_copy = unset(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(whole_copy, requires_grad=tensor.requires_grad)
    return whole_copy


def _store(place: Place, tensor: torch.Tensor) -> None:
    """Past `setattr`, which the wrappers of FSDP2 watch."""
    if place.is_buffer:
        place.module._buffers[place.key] = tensor
    else:
        assert isinstance(tensor, nn.Parameter)
        place.module._parameters[place.key] = tensor


def _local_part(tensor: torch.Tensor, values: torch.Tensor, rank: int, device: torch.device) -> torch.Tensor:
    local = torch.empty_like(local_of(tensor), device=device)
    spread = spread_of("", tensor)
    shape = tuple(tensor.shape)
    parts = (Part(whole(shape), (0,) * len(shape)),) if spread is None else parts_at(shape, spread, rank)
    for part in parts:
        piece = values
        for dim, (offset, size) in enumerate(zip(part.box.offset, part.box.size, strict=True)):
            piece = piece.narrow(dim, offset, size)
        part_of(local, part).copy_(piece)
    return local


def _move_real(own: str, model: nn.Module, device: torch.device, done: Done) -> None:
    """Tensors that were real from the start go to the device, if they are not there."""
    for name, place in places(model).items():
        tensor = place.tensor
        if id(tensor) in done or not place.is_persistent or tensor.is_meta or tensor.device == device:
            continue
        install(f"{own}.{name}", place, local_of(tensor).to(device))


def _check_set(name: str, place: Place, values: torch.Tensor) -> None:
    if is_unset(values):
        kind = type(place.module).__name__
        raise UserMistake(
            f"{name} ({dtype_name(values.dtype)}{list(values.shape)} of {kind}) got no first values",
            fix=f"give {kind} a method reset_parameters() that sets it, or use Parts(initialise=...)",
        )


def _mixed(seed: int, name: str) -> int:
    """One seed from the run's and a name; torch takes 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1
