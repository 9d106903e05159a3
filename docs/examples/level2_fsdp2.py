"""Level 2 with FSDP2: as level2_ddp.py; each change of the workers moves the shards that somebody lacks, no more."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import slurm_elastic.training as elastic


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1000, 16, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def build(world: elastic.World) -> elastic.Parts:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return elastic.Parts(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def main() -> None:
    run = elastic.init(seed=0, global_batch_size=32)
    data = run.data(make_dataset(), epochs=3)
    parts = run.build(build)

    for batch in run.steps(data):
        with batch:
            parts.optimizer.zero_grad()
            for micro in batch.micro_batches():
                inputs, targets = micro.data
                loss = nn.functional.mse_loss(parts.model(inputs.to(run.device)), targets.to(run.device))
                micro.backward(loss)
            parts.optimizer.step()

    if run.is_finished and run.global_rank == 0:
        print("trained for", run.step, "steps")


if __name__ == "__main__":
    main()
