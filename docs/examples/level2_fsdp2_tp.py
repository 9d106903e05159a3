"""Level 2 with FSDP2 and tensor parallelism in two dimensions: pairs of ranks share each layer, where they can."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

import slurm_elastic.training as elastic


def make_dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1000, 16, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def build(world: elastic.World) -> elastic.Parts:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    width = 2 if world.size % 2 == 0 else 1  # of tensor parallelism: how the training is divided may change, too
    mesh = init_device_mesh(world.device.type, (world.size // width, width), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = (mesh["data"].get_local_rank(), mesh["data"].size())  # ranks of a pair compute on the same samples
    return elastic.Parts(model, optimizer, data_parallel=share)


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
