"""A learning rate that is a function of the step alone, never of world size or of how often the run was resumed."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Schedule:
    """Sets lr = the optimizer's base rate x `factor(step)` x the batch plan's factor; the first step is step 0.

    The base rate is kept in the optimizer's own groups (`initial_lr`), so that it survives a checkpoint.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> None:
        self.optimizer: torch.optim.Optimizer | None = None  # between two generations
        self._factor = factor
        self.move_to(optimizer)

    def move_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the rates of this one from now on: level 2 makes a new optimizer for every generation."""
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

    def apply(self, steps_done: int, lr_factor: float = 1.0) -> None:
        factor = self._factor(steps_done) * lr_factor
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


def rate_of(optimizer: torch.optim.Optimizer | None) -> float | None:
    """The rate of the first parameter group, if it can be read without waiting for a device."""
    if optimizer is None or not optimizer.param_groups:
        return None
    rate = optimizer.param_groups[0]["lr"]
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return float(rate)
