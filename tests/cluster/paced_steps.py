"""Workers import this before their script (ELASTIC_WARM in run.env): examples train slowly while a test needs time.

While there is a file $PACE, each optimizer step of a process takes a little longer than the one before: the first are
soon done, and yet an example with few steps lasts while a busy machine starts its next workers. Rank 0 adds a line
"GENERATION WORLD_SIZE" to the file $TRACE, which is no ledger: it also has what was done twice.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import slurm_elastic.training  # noqa: F401  (what is imported ahead where ELASTIC_WARM is not set)

LONGER_BY_S = 0.06  # 45 steps last a minute
_steps = itertools.count(1)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if optimizer.param_groups[0]["lr"] == 0:  # torch makes an optimizer's state by such a step before it loads it
        return
    if os.environ["RANK"] == "0":
        with Path(os.environ["TRACE"]).open("a") as trace:
            trace.write(f"{os.environ['SLURM_ELASTIC_GENERATION']} {os.environ['WORLD_SIZE']}\n")
    if Path(os.environ["PACE"]).exists():
        time.sleep(LONGER_BY_S * next(_steps))


register_optimizer_step_post_hook(_after_step)
