"""One global batch as a rank sees it: its micro-batches, their weights, and the loss that they add up to.

Each micro-batch's mean loss is weighted by samples x world / global batch. DDP, FSDP2 and `run.average_gradients`
average over ranks; together that is the gradient of the mean over the whole global batch, at every world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.errors import UserMistake
from slurm_elastic.machine.batch import BatchPlan
from slurm_elastic.training.data import Indices
from slurm_elastic.training.rng import seed_all


def indices_at(all_indices: Indices, places: range) -> list[int]:
    """Data set indices of one micro-batch; an empty one gets the batch's first sample, which will not count."""
    chosen: list[int] = (all_indices[places.start : places.stop] if places else all_indices[:1]).tolist()
    return chosen


class MicroBatch:
    """`indices`: data set indices to compute on. `samples`: how many of them count.

    A rank that has no samples left gets one that belongs to the batch anyway, with `weight` 0: its forward and
    backward run (collectives inside the model must pair up), and add nothing.
    """

    def __init__(self, batch: Batch, number: int, indices: list[int], samples: int) -> None:
        self.indices = indices
        self.samples = samples
        self.weight = batch.plan.weight(samples)
        self._batch = batch
        self._number = number

    @cached_property
    def data(self) -> Any:
        """The samples of `indices` from the data set that `run.data` was given, collated, fetched ahead."""
        return self._batch.fetch(self._batch.step, self._number)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on, for those who do it themselves (GradScaler). `loss`: mean over `indices`."""
        self._batch.add_loss(loss.detach() * (self.samples / self._batch.size))
        return loss * self.weight

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of the weighted loss. `loss`: the mean over `indices`, a scalar."""
        if loss.ndim:
            raise UserMistake(
                f"micro.backward needs a scalar, got a tensor of shape {tuple(loss.shape)}",
                fix="take the mean over the samples of the micro-batch (reduction='mean')",
            )
        self.scaled(loss).backward()  # type: ignore[no-untyped-call]


class Batch:
    """Step number `step` (from 1) on global batch `all_indices`. Use `micro_batches`, then step, then `commit`."""

    def __init__(
        self,
        step: int,
        all_indices: Indices,
        plan: BatchPlan,
        global_rank: int,
        *,
        seed: int | None,
        modules: tuple[torch.nn.Module, ...],
        fetch: Callable[[int, int], Any],
        on_commit: Callable[[Batch], None],
        survives: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """`seed` None: leave random generators alone. `fetch`: (step, number of the micro-batch) -> data.

        `survives`: whether an error inside `with batch:` is the loss of a peer that this worker lives through.
        """
        self.step = step
        self.all_indices = all_indices
        self.plan = plan
        self.fetch = fetch
        self.loss: torch.Tensor | float | None = None  # this rank's part of the mean over the global batch
        self.is_committed = False
        self.is_lost = False  # a peer went away: unless it is committed, the step will be done again
        self._global_rank = global_rank
        self._seed = seed
        self._modules = modules
        self._on_commit = on_commit
        self._survives = survives

    def __enter__(self) -> Self:
        """`with batch:` around forward, backward and optimizer step: the step is committed at its end.

        At level 2 a peer that is lost inside does not end the script: the step is offered again, by those who are left.
        """
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._commit_or_survive()
            return False
        self.is_lost = not self.is_committed and self._survives(error)
        return self.is_lost

    def _commit_or_survive(self) -> None:
        """The step is made; only what ranks tell each other about the one before may still fail."""
        try:
            self.commit()
        except Exception as broken:
            self.is_lost = self._survives(broken)
            if not self.is_lost:
                raise

    def let_go(self) -> None:
        """Refer to no module any more."""
        self._modules = ()

    @property
    def size(self) -> int:
        return len(self.all_indices)

    @property
    def indices(self) -> list[int]:
        """This rank's share of the global batch; may be empty."""
        mine = self.plan.samples(self._global_rank)
        share: list[int] = self.all_indices[mine.start : mine.stop].tolist()
        return share

    @property
    def lr_factor(self) -> float:
        """What policy scale_batch multiplies the learning rate by at this world size; 1 otherwise."""
        return self.plan.lr_factor

    def micro_batches(self) -> Iterator[MicroBatch]:
        """The same number on every rank. DDP reduces gradients in the last one only."""
        ranges = self.plan.micro_batches(self._global_rank)
        for number, places in enumerate(ranges):
            self._sync_gradients(number == len(ranges) - 1)
            if self._seed is not None:
                place = places.start if places else self.size + self._global_rank
                seed_all(self._seed, self.step, place)
            yield MicroBatch(self, number, indices_at(self.all_indices, places), len(places))

    def add_loss(self, part: torch.Tensor) -> None:
        self.loss = part if self.loss is None else self.loss + part

    def commit(self, loss: torch.Tensor | float | None = None) -> None:
        """The optimizer has stepped. Optional: `run.steps` does it when the loop's body ends.

        `loss`: the mean over this rank's `indices`, for those who do not use `micro.backward` (which knows better,
        then `loss` is ignored). Repeats are ignored.
        """
        if self.is_committed:
            return
        self.is_committed = True
        if self.loss is None and loss is not None:
            samples = len(self.plan.samples(self._global_rank))
            value = loss.detach() if isinstance(loss, torch.Tensor) else loss
            self.loss = value * (samples / self.size) if samples else 0.0
        self._on_commit(self)

    def _sync_gradients(self, wanted: bool) -> None:
        for module in self._modules:
            if isinstance(module, DistributedDataParallel):
                module.require_backward_grad_sync = wanted  # what its no_sync() sets; must hold in forward, too
