"""Which samples belong to which step: a pure function of (seed, epoch, cursor, batch size), never of world size.

The data is one long line of samples: the permutation of epoch 0, then that of epoch 1, and so on. The cursor counts
the samples that were used since the beginning of the run; the next global batch is the next B of the line. A batch
never spans two epochs: the last one of an epoch holds what is left (it may be short; its gradient is the mean over
what it holds), so that every epoch uses every sample exactly once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_elastic.errors import UserMistake

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """The order of all samples of a run. `length`: size of the data set. Ends after `epochs` or `steps`."""

    length: int
    seed: int
    shuffle: bool = True
    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserMistake("the data set is empty", fix="check where it is read from")
        if (self.epochs is None) == (self.steps is None):
            raise UserMistake("run.data needs epochs=... or steps=..., one of them")

    def permutation(self, epoch: int) -> Indices:
        """Data set indices in the order of this epoch."""
        if not self.shuffle:
            return np.arange(self.length, dtype=np.int64)
        bits = np.random.Philox(key=np.array([self.seed % 2**64, epoch], dtype=np.uint64))
        return np.random.Generator(bits).permutation(self.length).astype(np.int64, copy=False)

    def size_at(self, cursor: int, global_batch: int) -> int:
        """Samples of the batch that starts at `cursor`: the full size, or what is left of the epoch."""
        return min(global_batch, self.length - cursor % self.length)

    def is_over(self, step: int, cursor: int) -> bool:
        """Whether the run is complete after `step` steps that used `cursor` samples."""
        if self.steps is not None:
            return step >= self.steps
        assert self.epochs is not None  # one of the two, see __post_init__
        return cursor >= self.epochs * self.length

    def total_steps(self, step: int, cursor: int, global_batch: int) -> int:
        """Steps of the whole run if the batch size stays: those done, and those to come."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        left_here = -cursor % self.length
        rest = max(0, self.epochs * self.length - cursor - left_here) // self.length
        return step - (-left_here // global_batch) - rest * (-self.length // global_batch)

    def signature(self) -> dict[str, int | bool]:
        """What must not change between two generations, or samples would be lost or repeated."""
        return {"length": self.length, "seed": self.seed, "shuffle": self.shuffle}


class Reader:
    """Reads a line batch by batch; keeps the permutation of the epoch it is in (8 bytes per sample)."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)

    def batch(self, cursor: int, global_batch: int) -> Indices:
        """Data set indices of the global batch that starts at `cursor`, in order."""
        epoch, start = divmod(cursor, self.line.length)
        if epoch != self._epoch:
            self._order, self._epoch = self.line.permutation(epoch), epoch
        return self._order[start : start + self.line.size_at(cursor, global_batch)]


def samples_sha256(indices: Indices) -> str:
    """The ledger's proof of a step: SHA-256 over the sorted indices as decimal text, joined by commas."""
    return hashlib.sha256(",".join(map(str, np.sort(indices).tolist())).encode()).hexdigest()
