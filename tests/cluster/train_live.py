"""A small training at level 2 for cluster tests: steps of a few milliseconds, losses that can be compared."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic


def build(world: elastic.World) -> elastic.Parts:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    wrap = (lambda module: DistributedDataParallel(module, init_sync=False)) if world.size > 1 else None
    return elastic.Parts(model, torch.optim.AdamW(model.parameters(), lr=1e-3), wrap=wrap)


def main() -> None:
    torch.set_num_threads(1)
    run = elastic.init(seed=0)
    inputs = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    targets = inputs.sum(1, keepdim=True).sin()
    data = run.data(len(inputs), steps=int(os.environ["STEPS"]))
    parts = run.build(build)
    for batch in run.steps(data):
        with batch:
            parts.optimizer.zero_grad()
            for micro in batch.micro_batches():
                micro.backward(nn.functional.mse_loss(parts.model(inputs[micro.indices]), targets[micro.indices]))
            parts.optimizer.step()
        time.sleep(float(os.environ.get("PAUSE", "0.03")))
    print(f"left after step {run.step}")


if __name__ == "__main__":
    main()
