"""Which numbers of nodes a run may have, and which of them fits what is there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_elastic.config_model import Batch, RunConfig
from slurm_elastic.machine.batch import fits


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePolicy:
    """What the settings say about sizes. Counts are nodes; every node runs `workers_per_node` workers."""

    min_nodes: int
    max_nodes: int
    increment: int = 1  # counted from min_nodes
    discrete: tuple[int, ...] = ()  # when given, only these
    workers_per_node: int = 1
    batch: Batch

    @property
    def reference_workers(self) -> int:
        """The world size that `batch.global_batch_size` is meant for (policy scale_batch)."""
        return self.min_nodes * self.workers_per_node


def size_policy(config: RunConfig) -> SizePolicy:
    return SizePolicy(
        min_nodes=config.elastic.min_nodes,
        max_nodes=config.elastic.max_nodes,
        increment=config.elastic.replica_increment_step,
        discrete=config.elastic.replica_discrete_values,
        workers_per_node=config.workers_per_node,
        batch=config.batch,
    )


def listed_sizes(policy: SizePolicy) -> tuple[int, ...]:
    """Node counts by range and step or by discrete values alone, ascending; the batch is not asked."""
    if policy.discrete:
        return tuple(sorted({n for n in policy.discrete if policy.min_nodes <= n <= policy.max_nodes}))
    return tuple(range(policy.min_nodes, policy.max_nodes + 1, policy.increment))


def allowed_sizes(policy: SizePolicy) -> tuple[int, ...]:
    """Node counts that the run may have, ascending: listed, and the batch can be divided among their workers."""
    return tuple(
        nodes
        for nodes in listed_sizes(policy)
        if fits(nodes * policy.workers_per_node, policy.batch, reference_workers=policy.reference_workers)
    )


def best_size(available: int, policy: SizePolicy) -> int | None:
    """The largest allowed number of nodes that is at most `available`; None when even the smallest is more."""
    return max((nodes for nodes in allowed_sizes(policy) if nodes <= available), default=None)
