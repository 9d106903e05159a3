"""Random numbers that do not depend on world size or on history: seeded anew from (seed, step, place in the batch).

So nothing has to be stored or handed over: the state of every generator is a function of the step. Two ranks never
share a stream, because their micro-batches start at different places of the global batch.
"""

from __future__ import annotations

import random

import numpy as np
import torch

_MIX = 0x9E3779B97F4A7C15  # SplitMix64, Steele et al. 2014: its increment and its two multipliers
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """One 64-bit seed from several numbers; near inputs give unrelated seeds."""
    state = 0
    for number in numbers:
        state = (state + number + _MIX) & _MASK
        state = ((state ^ (state >> 30)) * _FIRST) & _MASK
        state = ((state ^ (state >> 27)) * _SECOND) & _MASK
        state ^= state >> 31
    return state


def seed_all(*numbers: int) -> None:
    """Seed torch on the CPU and on this process's CUDA device, numpy's global generator and `random`.

    Not by torch.manual_seed: without a device in use, torch 2.13 takes a stack trace there for every kind of device
    (about 1 ms), and keeps each call for later.
    """
    seed = mixed(*numbers)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
