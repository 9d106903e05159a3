"""Level 2 with DDP: workers come and go while this process and its memory stay."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import slurm_elastic.training as elastic


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1000, 16, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def build(world: elastic.World) -> elastic.Parts:
    """Called for every world the training lives in, on the meta device: shapes only, no memory, no values."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # DDP looks at values when it is made, so it comes last. All ranks hold the same already: nothing to send.
    return elastic.Parts(model, optimizer, wrap=lambda module: DistributedDataParallel(module, init_sync=False))


def main() -> None:
    run = elastic.init(seed=0, global_batch_size=32)
    data = run.data(make_dataset(), epochs=3)
    parts = run.build(build)

    for batch in run.steps(data):
        with batch:  # a peer that is lost in here ends nothing: the step is offered again
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
