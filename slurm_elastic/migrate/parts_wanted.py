"""What a rank of the new world must hold: the new model's parts, and as much other state as there is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import torch
from torch.distributed.tensor import DTensor

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture import Notes, note_models, rng_name
from slurm_elastic.migrate.capture_boxes import Spread
from slurm_elastic.migrate.capture_layout import Described, Entry, Known, joined_aliases
from slurm_elastic.migrate.capture_names import Objects
from slurm_elastic.migrate.capture_values import tensor_names
from slurm_elastic.migrate.model import Tensor
from slurm_elastic.migrate.parts import Parts


def wanted(parts: Parts, rank: int, old: Known, *, peers: Iterable[int] = ()) -> Described:
    """What `rank` must hold for these parts, which may still be on the meta device. Not collective.

    Optimizer state is asked for where there is some: what was not made yet is not made up. Raises UserMistake,
    naming the tensor, where the model has one that the old state lacks or has in another shape or type.
    """
    objects = Objects(parts.objects())
    notes = note_models(objects, rank, peers)
    tied = joined_aliases([old.aliases, notes.aliases])
    for name, entry in notes.tensors.items():
        _check_same(name, Tensor(entry.shape, entry.dtype), old.tensors.get(tied.get(name, name)))
    for own in objects.optimizers:
        _want_optimizer(notes, objects, own, old)
    for own in objects.others:
        if own not in old.values:
            raise UserMistake(f"build(world) gives {own}, which the state lacks", fix="keep the names of the parts")
        _want_whole(notes, old, tensor_names(old.values[own]))
    for kind in ("cpu", "cuda"):
        name = rng_name(kind, rank)
        if name in old.tensors:
            private = notes.index_of(Spread((rank,), (1,), (None,)))
            notes.tensors[name] = msgspec.structs.replace(_whole(old, name), spread=private)
    tied = joined_aliases([old.aliases, notes.aliases])
    described = msgspec.structs.replace(notes.described(), values=old.values, optimizers=old.optimizers, aliases=tied)
    return msgspec.structs.replace(
        described, tensors={tied.get(name, name): entry for name, entry in notes.tensors.items()}
    )


def unwanted(old: Known, new: Iterable[Described]) -> list[str]:
    """Names of old tensors that no rank of the new world asks for: `new` must describe every kind of rank.

    Random generators of ranks that are gone are no loss. A name in this list usually is a mistake in `build`.
    """
    asked = {name for one in new for name in one.tensors}
    tied = joined_aliases([old.aliases, *(one.aliases for one in new)])
    return [name for name in old.tensors if tied.get(name, name) not in asked and not name.startswith("rng.")]


def state_of(objects: Objects, own: str, old: Known) -> dict[int, dict[str, str]]:
    """The old state there is of each parameter of an optimizer: name of the tensor by key, by the parameter's id."""
    by_parameter: dict[str, dict[str, str]] = {}
    for name in old.tensors:
        if name.startswith(f"{own}."):
            parameter, _, key = name.removeprefix(f"{own}.").rpartition(".")
            by_parameter.setdefault(parameter, {})[key] = name
    for alias, name in old.aliases.items():
        if alias.startswith(f"{own}.") and name in old.tensors:
            parameter, _, key = alias.removeprefix(f"{own}.").rpartition(".")
            by_parameter.setdefault(parameter, {})[key] = name
    return {
        identity: next((by_parameter[name] for name in names if name in by_parameter), {})
        for identity, names in objects.names_of(own).items()
    }


def settings_of(objects: Objects, own: str, old: Known) -> list[dict[str, object]]:
    """Old settings, as plain values, for each group of an optimizer: those of the group its parameters were in."""
    if own not in old.optimizers:
        raise UserMistake(f"build(world) gives {own}, which the state lacks", fix="keep the names of the parts")
    names = objects.names_of(own)
    by_name = {name: group.settings for group in old.optimizers[own].groups for name in group.names}
    found: list[dict[str, object]] = []
    for number, group in enumerate(objects.optimizers[own].param_groups):
        known = [by_name[name] for one in group["params"] for name in names[id(one)] if name in by_name]
        if group["params"] and not known:
            raise UserMistake(
                f"{own}: no parameter of group {number} was in any group of this optimizer before",
                fix="let build(world) give the optimizer the same parameters at every world size",
            )
        if any(settings != known[0] for settings in known):
            raise UserMistake(
                f"{own}: group {number} joins parameters that had different settings before",
                fix="let build(world) make the same groups at every world size",
            )
        found.append(known[0] if known else {})
    return found


def _want_optimizer(notes: Notes, objects: Objects, own: str, old: Known) -> None:
    names = objects.names_of(own)
    state = state_of(objects, own, old)
    for group in objects.optimizers[own].param_groups:
        for parameter in group["params"]:
            for key, name in state[id(parameter)].items():
                notes.tensors[name] = _state_entry(notes, name, parameter, old.tensors[name])
                for tied in names[id(parameter)]:
                    if f"{own}.{tied}.{key}" != name:
                        notes.aliases[f"{own}.{tied}.{key}"] = name
    for settings in settings_of(objects, own, old):
        _want_whole(notes, old, tensor_names(settings))


def _state_entry(notes: Notes, name: str, parameter: torch.Tensor, there: Tensor) -> Entry:
    """State of the parameter's shape is spread as the parameter is; one number is everywhere."""
    if not isinstance(parameter, DTensor) or there.shape == ():
        return Entry(there.shape, there.dtype)
    if there.shape != tuple(parameter.shape):
        raise UserMistake(
            f"{name} has the shape {list(there.shape)}, its sharded parameter {list(parameter.shape)}: "
            "how this state is to be divided cannot be known",
            fix="use an optimizer whose state has the shape of its parameter, or transition: relaunch",
        )
    spread = notes.spread_of(name, parameter)
    return Entry(there.shape, there.dtype, spread)


def _want_whole(notes: Notes, old: Known, names: Iterable[str]) -> None:
    for name in names:
        notes.tensors[name] = _whole(old, name)


def _whole(old: Known, name: str) -> Entry:
    return Entry(old.tensors[name].shape, old.tensors[name].dtype)


def _check_same(name: str, new: Tensor, old: Tensor | None) -> None:
    if old is None:
        raise UserMistake(
            f"build(world) makes a model with {name}, which the running training does not have",
            fix="let build(world) make the same model at every world size",
        )
    if new != old:
        raise UserMistake(
            f"build(world) makes {name} as {new.dtype}{list(new.shape)}; in the running training it is "
            f"{old.dtype}{list(old.shape)}",
            fix="let build(world) make the same model at every world size",
        )
