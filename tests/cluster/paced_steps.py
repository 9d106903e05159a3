"""Workers import this before their script (ELASTIC_WARM in run.env): examples train slowly while a test needs time.

Each optimizer step then takes as many seconds as the file $PACE says (without the file: none), and rank 0 adds a line
"GENERATION WORLD_SIZE" to the file $TRACE, which is no ledger: it also has what was done twice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import slurm_elastic.training  # noqa: F401  (what is imported ahead where ELASTIC_WARM is not set)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if optimizer.param_groups[0]["lr"] == 0:  # torch makes an optimizer's state by such a step before it loads it
        return
    if os.environ["RANK"] == "0":
        with Path(os.environ["TRACE"]).open("a") as trace:
            trace.write(f"{os.environ['SLURM_ELASTIC_GENERATION']} {os.environ['WORLD_SIZE']}\n")
    try:
        pause_s = float(Path(os.environ["PACE"]).read_text())
    except FileNotFoundError:
        return
    time.sleep(pause_s)


register_optimizer_step_post_hook(_after_step)
