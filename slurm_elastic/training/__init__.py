"""The library that a training script imports:

import slurm_elastic.training as elastic

run = elastic.init(seed=0)
...
data = run.data(dataset, epochs=3)
run.restore(model=model, optimizer=optimizer)
for batch in run.steps(data):
    for micro in batch.micro_batches():
        micro.backward(loss_of(model, micro.data))
    optimizer.step()
    optimizer.zero_grad()
"""

import numpy.random  # noqa: F401
import torch._dynamo  # noqa: F401 - torch does it on first use (0.9 s); workers should have it before their gate opens

from slurm_elastic.migrate.parts import Parts
from slurm_elastic.training.batches import Batch, MicroBatch
from slurm_elastic.training.live import Build, Current
from slurm_elastic.training.session import Session, elastic_event_detected, init
from slurm_elastic.training.world import World

__all__ = [
    "Batch",
    "Build",
    "Current",
    "MicroBatch",
    "Parts",
    "Session",
    "World",
    "elastic_event_detected",
    "init",
]
