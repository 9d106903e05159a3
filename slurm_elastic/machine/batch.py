"""How a global batch is divided among workers. Pure arithmetic: the same answer on every rank, without talking.

W workers, global batch B, largest micro-batch m: every worker runs the same number of micro-steps
A = ceil(ceil(B / W) / m), shares differ by at most one sample, and each micro-batch's mean loss is weighted by its
samples, so that the mean over workers is the gradient of the whole batch for every W <= B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_elastic.config_model import Batch
from slurm_elastic.errors import UserMistake


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One world size's division of one global batch. Positions count from 0 to `global_batch` - 1."""

    workers: int
    global_batch: int
    micro_batch: int  # the largest number of samples in one micro-step
    lr_factor: float = 1.0  # multiply the schedule's learning rate by this

    @property
    def largest_share(self) -> int:
        return -(-self.global_batch // self.workers)

    @property
    def smallest_share(self) -> int:
        return self.global_batch // self.workers

    @property
    def micro_steps(self) -> int:
        """The same on every worker, so that collectives inside a micro-step pair up."""
        return -(-self.largest_share // self.micro_batch)

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each global rank; the larger shares come first."""
        return tuple(len(self.samples(rank)) for rank in range(self.workers))

    def samples(self, global_rank: int) -> range:
        """Positions in the global batch that belong to this rank. All ranks together: each position once."""
        if not 0 <= global_rank < self.workers:
            raise ValueError(f"rank {global_rank} in a world of {self.workers}")
        size, larger = divmod(self.global_batch, self.workers)
        start = global_rank * size + min(global_rank, larger)
        return range(start, start + size + (global_rank < larger))

    def micro_batches(self, global_rank: int) -> tuple[range, ...]:
        """`micro_steps` ranges that divide `samples`; full ones first, the last may be short or empty."""
        mine, m = self.samples(global_rank), self.micro_batch
        return tuple(mine[step * m : (step + 1) * m] for step in range(self.micro_steps))

    def weight(self, samples: int) -> float:
        """Factor for the mean loss of a micro-batch of so many samples, where gradients are averaged over workers.

        Sum over all micro-batches of weight x mean, divided by `workers`, is the mean over the global batch.
        """
        return samples * self.workers / self.global_batch


def batch_plan(workers: int, batch: Batch, *, reference_workers: int = 0) -> BatchPlan:
    """The plan for `workers` workers.

    Args:
        workers: the world size, >= 1.
        batch: the settings; `global_batch_size` must be set (> 0).
        reference_workers: for policy scale_batch, the world size that `global_batch_size` is meant for
            (`min_nodes` x workers per node); 0 means `workers`.

    Raises:
        UserMistake: this world size cannot divide the batch as the settings ask, e.g. more workers than samples.
    """
    if workers < 1 or batch.global_batch_size < 1:
        raise UserMistake(f"no batch plan for {workers} workers and global_batch_size {batch.global_batch_size}")
    size = _global_batch(workers, batch, reference_workers or workers)
    if size is None:
        raise UserMistake(refusal(workers, batch), fix="change batch.global_batch_size or elastic.max_nodes")
    return BatchPlan(
        workers=workers,
        global_batch=size,
        micro_batch=batch.micro_batch_size or -(-size // workers),
        lr_factor=_lr_factor(size / batch.global_batch_size, batch.lr_rule),
    )


def fits(workers: int, batch: Batch, *, reference_workers: int = 0) -> bool:
    """Whether `batch_plan` has a plan for this world size. Always true when the script brings its own batches."""
    if batch.global_batch_size == 0:
        return True
    return _global_batch(workers, batch, reference_workers or workers) is not None


def refusal(workers: int, batch: Batch) -> str:
    """Why a world size has no plan, for people."""
    size = batch.global_batch_size
    if workers > size:
        return f"{workers} workers, but the global batch has only {size} samples: some would have none"
    if not batch.uneven and size % workers:
        return f"{workers} workers do not divide the global batch of {size} (batch.uneven is false)"
    return f"policy {batch.policy} has no batch for {workers} workers"


def _global_batch(workers: int, batch: Batch, reference: int) -> int | None:
    size = batch.global_batch_size
    if batch.policy == "scale_batch":
        scaled, rest = divmod(size * workers, reference)
        return None if rest or scaled < workers else scaled
    if batch.policy == "tolerance" and size % workers:
        near = _nearest_multiple(size, workers)
        if abs(near - size) <= size * batch.tolerance:
            return near
    if workers > size or (not batch.uneven and size % workers):
        return None
    return size


def _nearest_multiple(size: int, workers: int) -> int:
    """The multiple of `workers` (at least one sample each) that is nearest to `size`; of two, the larger."""
    below = size - size % workers
    above = below + workers
    return below if below and size - below < above - size else above


def _lr_factor(ratio: float, rule: str) -> float:
    match rule:
        case "linear":
            return ratio
        case "sqrt":
            return math.sqrt(ratio)
        case _:
            return 1.0
