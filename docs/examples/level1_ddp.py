"""Level 1 with DistributedDataParallel: clean drains, checkpoints of any world size, every sample exactly once.

Runs under slurm-elastic, under `torchrun`, and as plain `python level1_ddp.py`. (The batch size may stand in run.yaml
instead.)
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import slurm_elastic.training as elastic


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1000, 16, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def main() -> None:
    run = elastic.init(seed=0, global_batch_size=32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)).to(run.device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run.schedule(optimizer, lambda step: min(1.0, (step + 1) / 20))
    data = run.data(make_dataset(), epochs=3)
    run.restore(model=model, optimizer=optimizer)

    for batch in run.steps(data):
        for micro in batch.micro_batches():
            inputs, targets = micro.data
            loss = nn.functional.mse_loss(model(inputs.to(run.device)), targets.to(run.device))
            micro.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    if run.is_finished and run.global_rank == 0:  # not finished: drained, it goes on at another size
        print("trained for", run.step, "steps")


if __name__ == "__main__":
    main()
