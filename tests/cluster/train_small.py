"""A small training at level 1 for cluster tests: steps of a few milliseconds, losses that can be compared.

A worker computes for ever while there is a file $BUSY/GENERATION-NODE of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

import slurm_elastic.training as elastic


def main() -> None:
    torch.set_num_threads(1)
    run = elastic.init(seed=0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    net = torch.nn.parallel.DistributedDataParallel(model) if run.world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    targets = inputs.sum(1, keepdim=True).sin()
    run.restore(model=net, optimizer=optimizer)
    busy = Path(os.environ["BUSY"]) / f"{os.environ['SLURM_ELASTIC_GENERATION']}-{os.environ['SLURM_ELASTIC_NODE']}"
    for batch in run.steps(run.data(len(inputs), steps=int(os.environ["STEPS"]))):
        while busy.exists():
            time.sleep(0.01)
        for micro in batch.micro_batches():
            micro.backward(torch.nn.functional.mse_loss(net(inputs[micro.indices]), targets[micro.indices]))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(os.environ.get("PAUSE", "0.03")))
    print(f"left after step {run.step}")


if __name__ == "__main__":
    main()
