"""The demo's training script: a small GPT on real text, elastic at level 1. Runs at a fixed size under torchrun, too.

Environment: DEMO_STEPS; DEMO_RESULT, a file for the final loss; DEMO_ALONE, the directory of a run of fixed size.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic
from slurm_elastic.demo.model import Gpt, Shape, loss_of
from slurm_elastic.demo.text import load_text, split
from slurm_elastic.training.settings import Overrides

PEAK_LR = 1.2e-2
WARM_UP_STEPS = 20
GLOBAL_BATCH = 32  # sequences
EVALUATION_BATCH = 64


def learning_rate(step: int, steps: int) -> float:
    """Factor of the peak: a short warm-up, then a cosine down to 5 %. A function of the step alone."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARM_UP_STEPS) * (0.05 + 0.95 * cosine)


def sequences(text: bytes, context: int) -> Tensor:
    """[N, context + 1] bytes: consecutive pieces that share their border byte."""
    flat = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return flat.unfold(0, context + 1, context)


@torch.no_grad()
def evaluate(model: Gpt, held_out: Tensor) -> float:
    """Mean loss in nats per byte over the held-out text."""
    model.eval()
    total = 0.0
    for part in torch.split(held_out, EVALUATION_BATCH):
        total += loss_of(model, part.long()).item() * len(part)
    return total / len(held_out)


def main() -> None:
    torch.set_num_threads(1)
    steps = int(os.environ["DEMO_STEPS"])
    alone = os.environ.get("DEMO_ALONE")
    settings: Overrides = {"global_batch_size": GLOBAL_BATCH}
    if alone:
        settings["directory"] = alone
    run = elastic.init(seed=0, **settings)
    shape = Shape()
    training, held_out = (sequences(part, shape.context) for part in split(load_text()[1]))
    torch.manual_seed(0)
    model = Gpt(shape)
    wrapped = DistributedDataParallel(model) if run.world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.05)
    run.schedule(optimizer, lambda step: learning_rate(step, steps))
    run.restore(model=wrapped, optimizer=optimizer)
    for batch in run.steps(run.data(len(training), steps=steps)):
        for micro in batch.micro_batches():
            micro.backward(loss_of(wrapped, training[micro.indices].long()))
        optimizer.step()
        optimizer.zero_grad()
    if run.is_finished and run.global_rank == 0:
        result = {"final_loss": evaluate(model, held_out), "steps": steps}
        Path(os.environ["DEMO_RESULT"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
