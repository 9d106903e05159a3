"""Model and data of the stall benchmark (apart from the log, so that its driver needs no torch)."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.stall_steps import SAMPLES


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.sum(1, keepdim=True).sin()
