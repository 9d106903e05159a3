"""The user's data set read ahead by torch's DataLoader, in the order of this rank's micro-batches.

It has no state of its own: it starts wherever the run stands. What was read ahead of a transition is dropped with the
process, and read again by whoever needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from slurm_elastic.errors import UserMistake
from slurm_elastic.machine.batch import BatchPlan
from slurm_elastic.training.batches import indices_at
from slurm_elastic.training.data import Indices, Line, Reader
from slurm_elastic.training.rng import mixed


class Data:
    """What `run.data` gives back: a line of samples, perhaps the data set itself. Used by `run.steps`."""

    def __init__(self, source: Any, line: Line, loader_options: dict[str, Any]) -> None:
        """`source`: a map-style data set, or an int: the script reads the samples itself, from `indices`."""
        self.line = line
        self.reader = Reader(line)
        self._source = None if isinstance(source, int) else source
        self._options = loader_options
        self._ahead: deque[tuple[int, int]] = deque()  # (step, number) of what the loader was asked for
        self._loaded: Iterator[Any] | None = None

    def start(self, steps_done: int, cursor: int, plan: BatchPlan, global_rank: int) -> None:
        """Stand after `steps_done` steps that used `cursor` samples. Reads nothing yet."""
        self._ahead.clear()
        self._loaded = None
        self._from = (steps_done, cursor, plan, global_rank)

    def fetch(self, step: int, number: int) -> Any:
        """The collated samples of this rank's micro-batch `number` of `step`. Goes forward only."""
        if self._source is None:
            raise UserMistake(
                "micro.data needs the data set: run.data was given a length only",
                fix="call run.data(dataset, ...), or read the samples of micro.indices yourself",
            )
        if self._loaded is None:
            generator = torch.Generator().manual_seed(mixed(self.line.seed, self._from[0]) >> 1)
            loader: DataLoader[Any] = DataLoader(
                self._source, batch_sampler=_Order(self), generator=generator, **self._options
            )
            self._loaded = iter(loader)
        while True:
            data = next(self._loaded)
            if self._ahead.popleft() == (step, number):  # others were skipped by the script
                return data

    def order(self) -> Iterator[list[int]]:
        """Indices of all micro-batches to come, for the loader."""
        step, cursor, plan, global_rank = self._from
        reader = Reader(self.line)
        while not self.line.is_over(step, cursor):
            indices = reader.batch(cursor, plan.global_batch)
            step, cursor = step + 1, cursor + len(indices)
            for number, places in enumerate(plan_for(indices, plan).micro_batches(global_rank)):
                self._ahead.append((step, number))
                yield indices_at(indices, places)


class _Order:
    """Iterable anew, as DataLoader wants its batch sampler."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __iter__(self) -> Iterator[list[int]]:
        return self._data.order()


def plan_for(indices: Indices, plan: BatchPlan) -> BatchPlan:
    """The plan for these samples: `plan`, or its like for the short batch at an epoch's end."""
    if len(indices) == plan.global_batch:
        return plan
    return BatchPlan(plan.workers, len(indices), plan.micro_batch, plan.lr_factor)
