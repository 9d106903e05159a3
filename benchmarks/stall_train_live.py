"""The stall benchmark's training as a user of slurm-elastic writes it at level 2."""

from __future__ import annotations

import time

import torch
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic
from benchmarks.stall_problem import make_data, make_model
from benchmarks.stall_steps import PAUSE_S, log_step

STEPS = 1_000_000


def build(world: elastic.World) -> elastic.Parts:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return elastic.Parts(model, optimizer, wrap=lambda module: DistributedDataParallel(module, init_sync=False))


def main() -> None:
    torch.set_num_threads(1)
    run = elastic.init(seed=0)
    inputs, targets = make_data()
    data = run.data(len(inputs), steps=STEPS)
    parts = run.build(build)
    for batch in run.steps(data):
        with batch:
            parts.optimizer.zero_grad()
            for micro in batch.micro_batches():
                micro.backward(torch.nn.functional.mse_loss(parts.model(inputs[micro.indices]), targets[micro.indices]))
            parts.optimizer.step()
            time.sleep(PAUSE_S)
        if batch.is_committed and run.global_rank == 0:
            log_step(run.step, run.world_size, run.generation)


if __name__ == "__main__":
    main()
