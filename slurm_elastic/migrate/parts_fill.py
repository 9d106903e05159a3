"""Making the parts of a new world real with the boxes that the executor delivers, and making them ready to run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.migrate.capture import local_of, part_of, rng_name
from slurm_elastic.migrate.capture_layout import Described, Known
from slurm_elastic.migrate.capture_names import Objects, places
from slurm_elastic.migrate.capture_values import join, tensor_names
from slurm_elastic.migrate.model import Box
from slurm_elastic.migrate.parts import Parts
from slurm_elastic.migrate.parts_buffers import compute_buffers
from slurm_elastic.migrate.parts_place import install, like
from slurm_elastic.migrate.parts_wanted import settings_of, state_of

Supply = dict[tuple[str, Box], torch.Tensor]


def fill(parts: Parts, described: Described, old: Known, supply: Supply, device: torch.device) -> None:
    """Put delivered state into the parts, which can run afterwards. Not collective, unless `parts.wrap` is.

    `described`: what `wanted` said for this rank, tied names as on all ranks. `supply`: a tensor per box of it, on
    any device; it is emptied box by box, so that memory is free again as soon as its content is in place. A tensor
    that is the rank's whole local part, alone in its memory and on `device`, is taken as it is; the parts own it then.
    """
    source = Source(described, supply, {})
    objects = Objects(parts.objects())
    source.users.update(_uses(objects, described, old))
    for own, model in objects.models.items():
        _fill_model(source, own, model, device)
    for own in objects.optimizers:
        _fill_optimizer(source, objects, own, old, device)
    for own, other in objects.others.items():
        tensors = {name: source.take(name, None, device) for name in tensor_names(old.values[own])}
        other.load_state_dict(join(old.values[own], tensors))
    _set_rng(source)
    finish(parts, device)


def finish(parts: Parts, device: torch.device) -> None:
    """What remains to be done once parameters are real: buffers outside the state, and the wrapper."""
    for own, model in Objects(parts.objects()).models.items():
        compute_buffers(own, model, parts.buffers, device)
    if parts.wrap is not None:
        parts.model = parts.wrap(parts.model)


@dataclass(slots=True)
class Source:
    """The boxes that were delivered, and who still needs them."""

    described: Described
    supply: Supply
    users: dict[str, int]

    def take(self, name: str, model: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        """The local tensor of `name`, laid out in memory as `model`. The last user gets the memory itself."""
        name = self.described.aliases.get(name, name)
        entry, parts = self.described.tensors[name], self.described.parts(name)
        self.users[name] -= 1
        is_last = self.users[name] == 0
        shape = self.described.local_shape(name)
        dtype: torch.dtype = getattr(torch, entry.dtype)
        if is_last and len(parts) == 1 and self._fits(name, parts[0].box, shape, dtype, model, device):
            return self.supply.pop((name, parts[0].box))
        local = _empty(shape, dtype, model, device)
        for part in parts:
            part_of(local, part).copy_(self._box(name, part.box))
            if is_last:
                del self.supply[name, part.box]
        return local

    def _fits(
        self,
        name: str,
        box: Box,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        model: torch.Tensor | None,
        device: torch.device,
    ) -> bool:
        given = self._box(name, box)
        as_wanted = given.shape == shape and given.dtype == dtype and given.device == device
        as_laid_out = given.stride() == _empty(shape, dtype, model, torch.device("meta")).stride()
        return as_wanted and as_laid_out and given.untyped_storage().nbytes() == given.nbytes

    def _box(self, name: str, box: Box) -> torch.Tensor:
        found = self.supply.get((name, box))
        if found is None:
            raise SlurmElasticError(f"rank {self.described.rank} did not get {name} at {box.offset} of size {box.size}")
        return found


def _fill_model(source: Source, own: str, model: torch.nn.Module, device: torch.device) -> None:
    done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what was there before too: its id must stay its own
    for name, place in sorted(places(model).items()):
        old = place.tensor
        if not place.is_persistent:
            continue
        if id(old) in done:  # tied: a parameter is filled where it is; a buffer must be shared again
            if place.is_buffer:
                place.module._buffers[place.key] = done[id(old)][1]
            continue
        full = f"{own}.{name}"
        install(full, place, source.take(full, local_of(old), device))
        done[id(old)] = (old, place.tensor)


def _fill_optimizer(source: Source, objects: Objects, own: str, old: Known, device: torch.device) -> None:
    optimizer = objects.optimizers[own]
    names, state = objects.names_of(own), state_of(objects, own, old)
    for group, settings in zip(optimizer.param_groups, settings_of(objects, own, old), strict=True):
        tensors = {name: source.take(name, None, torch.device("cpu")) for name in tensor_names(settings)}
        group.update(join(settings, tensors))
        on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            values: dict[str, Any] = {}
            for key, name in state[id(parameter)].items():
                is_number = not old.tensors[name].shape
                place = torch.device("cpu") if is_number and not on_device else device
                local = source.take(name, None, place)
                values[key] = local if is_number else like(parameter, local)
            for name in names[id(parameter)]:
                values |= {key: join(value, {}) for key, value in old.optimizers[own].state.get(name, {}).items()}
            if values:
                optimizer.state[parameter] = values


def _uses(objects: Objects, described: Described, old: Known) -> Counter[str]:
    """How often each tensor will be taken: more than once where what was tied is tied no more."""
    uses: Counter[str] = Counter()
    for own, model in objects.models.items():
        first = {
            id(place.tensor): name for name, place in sorted(places(model).items(), reverse=True) if place.is_persistent
        }
        uses.update(f"{own}.{name}" for name in first.values())
    for own, optimizer in objects.optimizers.items():
        state = state_of(objects, own, old)
        uses.update(
            name for group in optimizer.param_groups for one in group["params"] for name in state[id(one)].values()
        )
        uses.update(name for settings in settings_of(objects, own, old) for name in tensor_names(settings))
    for own in objects.others:
        uses.update(tensor_names(old.values[own]))
    uses.update(name for name in described.tensors if name.startswith("rng."))
    held: Counter[str] = Counter()
    for name, count in uses.items():
        held[described.aliases.get(name, name)] += count
    return held


def _empty(
    shape: tuple[int, ...], dtype: torch.dtype, model: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    if model is not None and model.shape == shape:
        return torch.empty_like(model, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def _set_rng(source: Source) -> None:
    for kind in ("cpu", "cuda"):
        name = rng_name(kind, source.described.rank)
        if name in source.described.tensors:
            state = source.take(name, None, torch.device("cpu"))
            if kind == "cpu":
                torch.set_rng_state(state)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(state)
