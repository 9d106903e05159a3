"""The stall benchmark's training as a user of slurm-elastic writes it at level 1."""

from __future__ import annotations

import time

import torch
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic
from benchmarks.stall_problem import make_data, make_model
from benchmarks.stall_steps import PAUSE_S, log_step

STEPS = 1_000_000


def main() -> None:
    torch.set_num_threads(1)
    run = elastic.init(seed=0)
    net = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, targets = make_data()
    run.restore(model=net, optimizer=optimizer)
    for batch in run.steps(run.data(len(inputs), steps=STEPS)):
        for micro in batch.micro_batches():
            micro.backward(torch.nn.functional.mse_loss(net(inputs[micro.indices]), targets[micro.indices]))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(PAUSE_S)
        batch.commit()
        if run.global_rank == 0:
            log_step(run.step, run.world_size, run.generation)


if __name__ == "__main__":
    main()
