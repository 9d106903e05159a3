"""Settings that are allowed but may surprise, and what an unplanned failure may cost."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.config_model import Elastic, RunConfig
from slurm_elastic.machine.sizes import allowed_sizes, listed_sizes, size_policy
from slurm_elastic.units import format_duration


def advice(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """(key, what may surprise) for settings that are allowed. Shown by `check` and at submit."""
    return (
        *_on_loss(config),
        *_on_transitions(config),
        *_on_sizes(config),
        *(_on_single(config) if config.run.layout == "single" else _on_jobs(config)),
        *_on_batch(config),
    )


def loss_bound(config: RunConfig) -> str:
    """How much an unplanned failure may cost, for people."""
    kept = config.checkpoint
    bounds = [f"{kept.every_steps} steps"] if kept.every_steps else []
    if kept.every:
        bounds.append(format_duration(kept.every) + " of work")
    if not bounds:
        return "everything since the last planned drain, or since the beginning"
    return "at most " + " or ".join(bounds) + ", whichever is less" * (len(bounds) > 1)


def _on_loss(config: RunConfig) -> Iterator[tuple[str, str]]:
    if not config.checkpoint.every_steps and not config.checkpoint.every:
        yield (
            "checkpoint.every",
            f"not set: a node failure loses {loss_bound(config)} (fine when the script saves by itself)",
        )
    grace = config.elastic.graceful_shutdown_timeout
    if grace < 5:
        yield "elastic.graceful_shutdown_timeout", f"{format_duration(grace)}: a save may not fit"


def _on_transitions(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.elastic.transition == "live" and config.run.launcher == "mpi":
        yield "elastic.transition", "live, but the workers of an MPI world can only be started together: as relaunch"


def _on_sizes(config: RunConfig) -> Iterator[tuple[str, str]]:
    listed, most = listed_sizes(size_policy(config)), config.elastic.max_nodes
    if listed[-1] < most:
        grows = "" if len(listed) > 1 else ": the run never grows"
        yield "elastic.max_nodes", f"{most} is never reached, the largest allowed size is {listed[-1]} nodes{grows}"


def _on_single(config: RunConfig) -> Iterator[tuple[str, str]]:
    """One job has one QOS, partition and time limit; those of `elastic` come first."""
    for name in ("qos", "partition", "time"):
        unused, used = getattr(config.base, name), getattr(config.elastic, name)
        if unused and used and unused != used:
            yield f"base.{name}", f"ignored with layout single: elastic.{name} is that of the only job"
    if config.elastic.companion_nodes != Elastic().companion_nodes:
        yield "elastic.companion_nodes", "ignored with layout single: there are no companions"


def _on_jobs(config: RunConfig) -> Iterator[tuple[str, str]]:
    base, elastic = config.base, config.elastic
    if elastic.max_nodes == base.nodes:
        yield "elastic.max_nodes", f"the same as base.nodes ({base.nodes}): no companion will ever be asked for"
        return
    if elastic.qos == base.qos and (elastic.partition or base.partition) == base.partition:
        yield (
            "elastic.qos",
            "companions use the base job's QOS and partition: what preempts them preempts the owner of the run, too",
        )
    if elastic.time is None:
        yield "elastic.time", "not set: companions without a short limit rarely fit into backfill gaps"
    if config.control.poll < 15:
        yield "control.poll", "below 15s: more than 4 queries a minute burden the controller"


def _on_batch(config: RunConfig) -> Iterator[tuple[str, str]]:
    batch = config.batch
    if batch.policy == "constant" and batch.lr_rule != "none":
        yield "batch.lr_rule", "no effect with policy constant"
    if batch.policy == "scale_batch" and batch.lr_rule == "none":
        yield "batch.lr_rule", "none, although the batch is scaled; linear or sqrt is usual"
    if not batch.global_batch_size:
        return
    policy = size_policy(config)
    left_out = sorted(set(listed_sizes(policy)) - set(allowed_sizes(policy)))
    if left_out:
        shown = ", ".join(map(str, left_out[:8])) + (", ..." if len(left_out) > 8 else "")
        yield (
            "batch.global_batch_size",
            f"{batch.global_batch_size} cannot be divided at {shown} nodes: these sizes are never used",
        )
