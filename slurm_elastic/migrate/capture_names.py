"""Names of a model's tensors that stay the same at every world size, whatever wraps the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.errors import UserMistake

_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile's, activation checkpointing's


@runtime_checkable
class Stateful(Protocol):
    """Anything else that has a state, such as a scheduler. The state must be plain values and tensors."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Place(NamedTuple):
    """Where a module keeps a tensor: the module, the key there, and whether it is a buffer."""

    module: torch.nn.Module
    key: str
    is_buffer: bool

    @property
    def tensor(self) -> torch.Tensor:
        kept = self.module._buffers if self.is_buffer else self.module._parameters
        found = kept[self.key]
        assert found is not None
        return found

    @property
    def is_persistent(self) -> bool:
        return not self.is_buffer or self.key not in self.module._non_persistent_buffers_set


class Objects:
    """The user's objects by kind, under the names that the user gave."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        """Raises UserMistake for something that has no state, and for an optimizer without its model."""
        self.models: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.others: dict[str, Stateful] = {}
        for name, value in objects.items():
            if isinstance(value, torch.nn.Module):
                self.models[name] = value
            elif isinstance(value, torch.optim.Optimizer):
                self.optimizers[name] = value
            elif isinstance(value, Stateful):
                self.others[name] = value
            else:
                raise UserMistake(
                    f"{name}=... is a {type(value).__name__}, which has no state_dict",
                    fix="give modules, optimizers, schedulers, or objects with state_dict and load_state_dict",
                )

    def names_of(self, optimizer: str) -> dict[int, tuple[str, ...]]:
        """All names, without the model's own, of each parameter of an optimizer, by id."""
        wanted = {id(one) for group in self.optimizers[optimizer].param_groups for one in group["params"]}
        for model in self.models.values():
            names = parameter_names(model)
            if wanted <= set(names):
                return names
        raise UserMistake(
            f"{optimizer}: no model given beside it holds all parameters of this optimizer",
            fix="give the model that it was made for; join several in an nn.ModuleDict",
        )


def modules(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module under each of its names, parents first; wrappers add nothing to a name."""
    yield prefix, model
    for key, child in model._modules.items():
        if child is None:
            continue
        is_inner = key in _WRAPPED or (key == "module" and isinstance(model, DistributedDataParallel))
        yield from modules(child, prefix if is_inner else joined(prefix, key))


def places(model: torch.nn.Module) -> dict[str, Place]:
    """Where each parameter and buffer is, under each of its names, in the model's order."""
    found: dict[str, Place] = {}
    for prefix, module in modules(model):
        for key, parameter in module._parameters.items():
            if parameter is not None:
                found[joined(prefix, key)] = Place(module, key, is_buffer=False)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                found[joined(prefix, key)] = Place(module, key, is_buffer=True)
    return found


def parameter_names(model: torch.nn.Module) -> dict[int, tuple[str, ...]]:
    """All names of each parameter, smallest first, by the parameter's id."""
    names: dict[int, list[str]] = {}
    for name, place in places(model).items():
        if not place.is_buffer:
            names.setdefault(id(place.tensor), []).append(name)
    return {key: tuple(sorted(several)) for key, several in names.items()}


def joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
