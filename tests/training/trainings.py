"""What the worker processes of the tests run: a small float64 training that writes down what it computed on."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic
from tests.training.worlds import die

SAMPLES = 61
GLOBAL_BATCH = 8
EPOCHS = 2


@dataclass(frozen=True)
class Plot:
    """How one generation ends: by itself, by a drain asked for after `stop_after`, or by a death at `die_at`."""

    kind: str = "plain"  # "ddp", "fsdp", "plain"
    stop_after: int = 0
    die_at: int = 0
    die_rank: int = 0
    background: bool = False
    slow_s: float = 0.0  # extra time per step


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(SAMPLES, 3, generator=generator, dtype=torch.float64)


def network(kind: str) -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    return model


def train(rank: int, directory: Path, plot: Plot) -> None:
    run = elastic.init(
        seed=1,
        directory=directory,
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=2,
        checkpoint_every_steps=4,
        checkpoint_async=plot.background,
    )
    inputs, targets = samples()
    model = network(plot.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.schedule(optimizer, lambda step: 1 / (1 + 0.1 * step))
    run.restore(model=model, optimizer=optimizer)
    with (directory / f"used-{run.generation}-{rank}.jsonl").open("w") as used:
        for batch in run.steps(run.data(SAMPLES, epochs=EPOCHS)):
            computed_on: list[int] = []
            for micro in batch.micro_batches():
                loss = nn.functional.mse_loss(model(inputs[micro.indices]), targets[micro.indices])
                micro.backward(loss)
                computed_on += micro.indices[: micro.samples]
            if (batch.step, rank) == (plot.die_at, plot.die_rank):
                die()
            time.sleep(plot.slow_s)
            if plot.kind == "plain":
                run.average_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
            used.write(json.dumps([batch.step, computed_on]) + "\n")
            used.flush()
            if batch.step == plot.stop_after and rank == run.world_size - 1:
                run.request_stop("the test asks")
    ended = {"step": run.step, "finished": run.is_finished}
    (directory / f"ended-{run.generation}-{rank}.json").write_text(json.dumps(ended))
