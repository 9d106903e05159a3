"""What the two trainings of the stall benchmark have in common: model, data, pace, and a log of completed steps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STEP_LOG = "BENCHMARK_STEPS"  # environment variable: where rank 0 of whatever generation writes its steps
SAVE_EVERY = 20
PAUSE_S = 0.03  # on top of each step's work
GLOBAL_BATCH = 24
SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Done:
    """A completed step. `life` tells generations apart: their number, or rank 0's pid where all are started anew."""

    time: float
    step: int
    world: int
    life: int


def log_step(step: int, world: int, life: int = 0) -> None:
    line = f"{time.time():.4f} {step} {world} {life or os.getpid()}\n"
    out = os.open(os.environ[STEP_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(out, line.encode())
    finally:
        os.close(out)


def read_steps(path: Path) -> list[Done]:
    """All whole lines, in the order in which they were written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            when, step, world, life = line.split()
            found.append(Done(float(when), int(step), int(world), int(life)))
    return found
