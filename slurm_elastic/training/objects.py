"""The user's objects as one state dict that every world size can load, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate import capture_names as kinds


class Objects(kinds.Objects):
    """Names and objects given to `run.restore`. Names become part of the checkpoint: keep them from run to run."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        """Raises UserMistake for something that has no state, and for an optimizer without its model."""
        super().__init__(objects)
        self._owners = {name: self._owner(name, optimizer) for name, optimizer in self.optimizers.items()}

    def state(self) -> dict[str, Any]:
        """Sharded where the objects are sharded; without copies. Collective for FSDP."""
        state: dict[str, Any] = {name: get_model_state_dict(model) for name, model in self.models.items()}
        for name, optimizer in self.optimizers.items():
            state[name] = get_optimizer_state_dict(self._owners[name], optimizer)
        for name, other in self.others.items():
            state[name] = other.state_dict()
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Put a state with the same keys, e.g. a loaded one, into the objects."""
        for name, model in self.models.items():
            set_model_state_dict(model, state[name])
        for name, optimizer in self.optimizers.items():
            set_optimizer_state_dict(self._owners[name], optimizer, state[name])
        for name, other in self.others.items():
            other.load_state_dict(state[name])

    def _owner(self, name: str, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in self.models.values():
            if wanted <= {id(parameter) for parameter in model.parameters()}:
                return model
        raise UserMistake(
            f"run.restore({name}=...): no model given beside it holds all parameters of this optimizer",
            fix="pass the module that it was made for (after DDP or fully_shard); join several in an nn.ModuleDict",
        )
