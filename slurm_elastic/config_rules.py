"""What makes settings wrong although each value has the right type.

A rule yields (keys, reason): the first key is where the reader should look; a rule is skipped when one of its keys
is already known to be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_elastic.config_model import RunConfig
from slurm_elastic.config_sbatch import sbatch_faults
from slurm_elastic.config_yaml import shown_key
from slurm_elastic.machine.batch import refusal
from slurm_elastic.machine.sizes import allowed_sizes, listed_sizes, size_policy
from slurm_elastic.units import format_duration

Rule = tuple[tuple[str, ...], str]

MOST_NODES = 65_533  # what Slurm can hold in one job
MOST_PER_NODE = 1_024
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]{0,127}", re.ASCII)
_SLURM_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+,-]{0,255}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}", re.ASCII)
_OURS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"})
_OUR_PREFIXES = ("SLURM_", "SRUN_", "SBATCH_", "PMI", "MASTER_", "TORCHELASTIC_")


def faults(config: RunConfig) -> Iterator[Rule]:
    """Every broken rule."""
    yield from _run(config)
    yield from _environment(config)
    yield from _names(config)
    yield from _ranges(config)
    yield from _sizes(config)
    yield from _batch(config)
    yield from _checkpoint(config)
    yield from _control(config)
    for option, reason in sbatch_faults(config.base.sbatch):
        yield (f"base.sbatch.{shown_key(option)}",), reason
    if "nodelist" in config.base.sbatch and config.run.layout == "companions":
        yield ("base.sbatch.nodelist",), "is refused: companions would ask for the same nodes and never start"


def _run(config: RunConfig) -> Iterator[Rule]:
    run = config.run
    if not _RUN_NAME.fullmatch(run.name):
        yield ("run.name",), "needs 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit"
    if not run.command:
        yield ("run.command",), "is empty; expected the words of one worker's command: [python, train.py]"
    elif not run.command[0].strip():
        yield ("run.command",), "begins with an empty word"
    for key, path in (("run.dir", run.dir), ("run.workdir", run.workdir), ("checkpoint.dir", config.checkpoint.dir)):
        if not path.isprintable():
            yield (key,), "has a control character or a line break"
        elif "$" in path:
            yield (key,), "has a '$': variables are not expanded here; write the path out"
        elif key == "run.dir" and ("%" in path or "\\" in path):
            yield (key,), "has a '%' or a backslash, which sbatch changes in names of log files"
    if run.dir in ("/", "//"):
        yield ("run.dir",), "needs a directory of its own"
    if run.launcher == "mpi" and run.layout != "single":
        yield ("run.launcher", "run.layout"), "mpi needs `layout: single`: one MPI world cannot span several jobs"
    if not _SLURM_NAME.fullmatch(run.mpi):
        yield ("run.mpi",), "is not a name that `srun --mpi=list` could show"
    if not 0 <= run.max_restarts <= 10_000:
        yield ("run.max_restarts",), "needs 0 to 10000"


def _environment(config: RunConfig) -> Iterator[Rule]:
    for name in config.run.env:
        key = (f"run.env.{shown_key(name)}",)
        if not _VARIABLE.fullmatch(name):
            yield key, "is not a name for an environment variable"
        elif name in _OURS or name.startswith(_OUR_PREFIXES):
            yield key, "is refused: it is set for each worker by slurm-elastic or Slurm"


def _names(config: RunConfig) -> Iterator[Rule]:
    base, elastic = config.base, config.elastic
    for key, value, form in (
        ("base.qos", base.qos, _SLURM_NAME),
        ("base.account", base.account, _SLURM_NAME),
        ("base.partition", base.partition, _SLURM_NAMES),
        ("elastic.qos", elastic.qos, _SLURM_NAME),
        ("elastic.partition", elastic.partition, _SLURM_NAMES),
    ):
        if value and not form.fullmatch(value):
            yield (key,), "is not a name that Slurm could have"
    if config.control.interface and not _INTERFACE.fullmatch(config.control.interface):
        yield ("control.interface",), "is not a network interface's name, such as eth0 or ib0"


def _ranges(config: RunConfig) -> Iterator[Rule]:
    base, elastic, batch = config.base, config.elastic, config.batch
    for key, value, least, most in (
        ("base.nodes", base.nodes, 0, MOST_NODES),
        ("base.gpus_per_node", base.gpus_per_node, 0, MOST_PER_NODE),
        ("base.workers_per_node", base.workers_per_node, 0, MOST_PER_NODE),
        ("base.cpus_per_worker", base.cpus_per_worker, 0, 65_536),
        ("elastic.min_nodes", elastic.min_nodes, 1, MOST_NODES),
        ("elastic.max_nodes", elastic.max_nodes, 1, MOST_NODES),
        ("elastic.replica_increment_step", elastic.replica_increment_step, 1, MOST_NODES),
        ("elastic.companion_nodes", elastic.companion_nodes, 1, MOST_NODES),
        ("elastic.max_pending_companions", elastic.max_pending_companions, 1, 1_000),
        ("batch.global_batch_size", batch.global_batch_size, 0, 2**40),
        ("batch.micro_batch_size", batch.micro_batch_size, 0, 2**40),
        ("checkpoint.every_steps", config.checkpoint.every_steps, 0, 2**40),
        ("checkpoint.keep", config.checkpoint.keep, 1, 100_000),
    ):
        if not least <= value <= most:
            yield (key,), f"is {value}; needs {least} to {most}"
    for key, seconds in (("base.time", base.time), ("elastic.time", elastic.time)):
        if seconds is not None and seconds < 60:
            yield (key,), f"is {format_duration(seconds)}; Slurm counts time limits in minutes (a number is seconds)"
    if not 0 <= batch.tolerance < 1:
        yield ("batch.tolerance",), f"is {batch.tolerance:g}; needs 0 to 1, such as 0.1 or 10%"
    if elastic.graceful_shutdown_timeout <= 0:
        yield ("elastic.graceful_shutdown_timeout",), "needs more than 0: workers need time to save"


def _sizes(config: RunConfig) -> Iterator[Rule]:
    base, elastic = config.base, config.elastic
    low, high = elastic.min_nodes, elastic.max_nodes
    bounds = ("elastic.max_nodes", "elastic.min_nodes")
    if low > high:
        yield bounds, f"is {high}; below min_nodes ({low})"
        return
    values = elastic.replica_discrete_values
    if values and elastic.replica_increment_step != 1:
        yield (
            ("elastic.replica_increment_step", "elastic.replica_discrete_values"),
            "and replica_discrete_values exclude each other; keep one",
        )
    for value in values:
        if not low <= value <= high:
            yield ("elastic.replica_discrete_values", *bounds), f"has {value}, outside min_nodes {low} to {high}"
    if len(set(values)) != len(values):
        yield ("elastic.replica_discrete_values",), "has a number twice"
    if config.run.layout == "single":
        return
    if low < base.nodes:
        yield (
            ("elastic.min_nodes", "base.nodes"),
            f"is {low}, but the {base.nodes} base.nodes are always members; raise it, or lower base.nodes",
        )
        return
    yield from _companions(config)


def _companions(config: RunConfig) -> Iterator[Rule]:
    """Every listed size must be the base plus whole companions, or nodes would be paid for and parked."""
    base, elastic = config.base, config.elastic
    each = elastic.companion_nodes
    keys = ("elastic.companion_nodes", "elastic.replica_increment_step", "elastic.min_nodes", "elastic.max_nodes")
    if not 1 <= each <= MOST_NODES or elastic.replica_increment_step < 1 or elastic.max_nodes > MOST_NODES:
        return
    odd = [nodes for nodes in listed_sizes(size_policy(config)) if nodes > base.nodes and (nodes - base.nodes) % each]
    if odd:
        yield (
            (*keys, "base.nodes", "elastic.replica_discrete_values"),
            f"is {each}: {odd[0]} nodes are not {base.nodes} base.nodes plus whole companions",
        )


def _batch(config: RunConfig) -> Iterator[Rule]:
    batch, elastic = config.batch, config.elastic
    keys = (
        "batch.global_batch_size",
        "batch.policy",
        "batch.uneven",
        "batch.tolerance",
        "base.workers_per_node",
        "base.gpus_per_node",
        "elastic.min_nodes",
        "elastic.max_nodes",
        "elastic.replica_increment_step",
        "elastic.replica_discrete_values",
    )
    if not 1 <= elastic.min_nodes <= elastic.max_nodes <= MOST_NODES or elastic.replica_increment_step < 1:
        return
    policy = size_policy(config)
    listed = listed_sizes(policy)
    if not listed:
        yield keys[-3:], "leaves no allowed number of nodes between min_nodes and max_nodes"
    if batch.global_batch_size == 0:
        if batch.micro_batch_size:
            yield ("batch.micro_batch_size", "batch.global_batch_size"), "has no effect without global_batch_size"
        return
    if not 0 < batch.global_batch_size < 2**41 or not listed or not 0 < config.workers_per_node <= MOST_PER_NODE:
        return
    if batch.policy == "scale_batch" and batch.global_batch_size % policy.reference_workers:
        yield keys, f"must be a multiple of the {policy.reference_workers} workers of min_nodes to be scaled"
        return
    allowed = allowed_sizes(policy)
    if not allowed:
        yield keys, f"fits no allowed size: {refusal(listed[0] * config.workers_per_node, batch)}"
    elif batch.policy == "constant" and listed[-1] * config.workers_per_node > batch.global_batch_size:
        yield keys, f"is too small: {refusal(listed[-1] * config.workers_per_node, batch)}; lower max_nodes or raise it"


def _checkpoint(config: RunConfig) -> Iterator[Rule]:
    if 0 < config.checkpoint.every < 1:
        yield ("checkpoint.every",), "needs at least 1s; for steps use every_steps"


def _control(config: RunConfig) -> Iterator[Rule]:
    control = config.control
    if not 0.05 <= control.heartbeat <= 60:
        yield ("control.heartbeat",), "needs 50ms to 1m"
    for key, value in (("worker_timeout", control.worker_timeout), ("agent_timeout", control.agent_timeout)):
        if value < 2 * control.heartbeat:
            yield (f"control.{key}", "control.heartbeat"), "needs at least two heartbeats, or the living count as lost"
    if control.supervisor_timeout < max(control.worker_timeout, control.agent_timeout):
        yield (
            ("control.supervisor_timeout", "control.worker_timeout", "control.agent_timeout"),
            "needs at least worker_timeout and agent_timeout",
        )
    if control.launch_timeout < 1:
        yield ("control.launch_timeout",), "needs at least 1s"
    if not 1 <= control.poll <= 3600:
        yield ("control.poll",), "needs 1s to 1h"
