"""Level 1 with FSDP2: as level1_ddp.py, but for `fully_shard`. Shards are cut anew when the world size changes."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
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
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
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

    if run.is_finished and run.global_rank == 0:
        print("trained for", run.step, "steps")


if __name__ == "__main__":
    main()
