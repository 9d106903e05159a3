"""What each key of run.yaml means: one table for the reference and for the file that `slurm-elastic init` writes."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from slurm_elastic.config_decode import SECTIONS
from slurm_elastic.config_sbatch import refused_options
from slurm_elastic.units import format_duration

SECTION_MEANING = {
    "run": "The run: what it is called, where its files are, what each worker executes.",
    "base": "The protected job that owns the run. Its nodes are always members.",
    "elastic": "How the run changes size. Names are those of HyperPod's elastic policy where it has the same thing.",
    "batch": "How the global batch is divided among workers, so that a change of size does not change the training.",
    "checkpoint": "When the state is saved beside the planned saves at each transition.",
    "control": "Connections between the run's processes. The defaults fit most clusters.",
}

MEANING = {
    "run.name": "Name of the run; also the name of its jobs in `squeue`.",
    "run.dir": "Run directory on a file system that all nodes share. Relative to the folder of this file.",
    "run.command": "The words of one worker's command. `python` is the interpreter that runs slurm-elastic.",
    "run.env": "Environment variables for each worker.",
    "run.workdir": "Where workers start. Default: the folder of this file.",
    "run.layout": "`companions`: a protected base job plus preemptible jobs. `single`: one preemptible job that is "
    "requeued and starts again at whatever size between min_nodes and max_nodes it gets.",
    "run.launcher": "`torch`: one step per node and torchrun's environment. `mpi`: one MPI world (needs "
    "`layout: single`).",
    "run.mpi": "For `launcher: mpi`, the value of srun's `--mpi`.",
    "run.max_restarts": "Restarts in a row without a new committed step before the run gives up. A level-0 script "
    "commits nothing that can be seen: there ten minutes of life count as progress.",
    "base.nodes": "Nodes of the base job that train. 0: it is a master without GPUs, and only companions train.",
    "base.qos": "QOS of the base job: one that nothing preempts.",
    "base.partition": "Partition, or several with commas. Default: the cluster's.",
    "base.account": "Account that is charged, also for companions.",
    "base.time": "Time limit of the base job. A number alone is seconds. Default: the partition's.",
    "base.gpus_per_node": "GPUs that each node gives to the run, also in companions.",
    "base.workers_per_node": "Worker processes on each node. 0: one per GPU, or 1 without GPUs.",
    "base.cpus_per_worker": "CPUs of each worker. 0: the node's CPUs divided among its workers.",
    "base.sbatch": "Further long options of sbatch without dashes, also for companions; `true` for an option without a "
    "value.",
    "elastic.min_nodes": "The run never trains on fewer nodes. Default: `base.nodes`, at least 1.",
    "elastic.max_nodes": "The run never trains on more nodes. Default: `min_nodes`.",
    "elastic.replica_increment_step": "Allowed sizes are min_nodes, min_nodes + step, and so on up to max_nodes.",
    "elastic.replica_discrete_values": "Instead of the step: exactly these numbers of nodes are allowed.",
    "elastic.companion_nodes": "Nodes of one companion job.",
    "elastic.transition": "How a run changes over. `auto`: workers keep their memory and change in place if the script "
    "uses `run.build`, else all are started anew from a checkpoint. `live`: the same, and a script that cannot is told "
    "so. `relaunch`: always anew.",
    "elastic.qos": "QOS of companions: one that more important work preempts.",
    "elastic.partition": "Partition of companions. Default: the base job's.",
    "elastic.time": "Time limit of companions; short ones start sooner. Default: the partition's.",
    "elastic.max_pending_companions": "Companions that may wait in the queue at once.",
    "elastic.graceful_shutdown_timeout": "A drain with its save may take this long before workers are killed.",
    "elastic.scaling_timeout": "Least time between two transitions that were chosen, not forced.",
    "elastic.faulty_scale_down_timeout": "How long a lost node may be replaced before the run goes on without it.",
    "elastic.scale_up_snooze_time": "Pause after a growth that did not last; doubles each time, at most an hour.",
    "batch.global_batch_size": "Samples of one optimizer step, over all workers. 0: the script brings its own batches.",
    "batch.micro_batch_size": "Most samples of one forward and backward pass of one worker. 0: no limit.",
    "batch.policy": "`constant`: the global batch never changes. `scale_batch`: global_batch_size is for min_nodes and "
    "grows with the workers. `tolerance`: the nearest multiple of the workers within `tolerance`.",
    "batch.lr_rule": "How the learning rate follows a batch that changed.",
    "batch.tolerance": "For policy tolerance: largest change of the batch, such as 0.1 or 10%.",
    "batch.uneven": "Whether workers' shares may differ by one sample. `false`: only sizes that divide the batch.",
    "checkpoint.dir": "Where checkpoints go. Default: `checkpoints` in the run directory.",
    "checkpoint.every_steps": "Save after so many steps. 0: not by steps.",
    "checkpoint.every": "Save after so much time. 0: not by time.",
    "checkpoint.keep": "Checkpoints that are kept; older ones are deleted after a newer one is durable.",
    "checkpoint.async": "Write while the training goes on.",
    "control.interface": "Network interface to listen on, such as ib0. Default: the one that leads to the nodes.",
    "control.heartbeat": "Interval of life signs between workers, agents and the supervisor.",
    "control.worker_timeout": "A worker that is silent for longer is lost.",
    "control.agent_timeout": "An agent that is silent for longer is lost, and its node with it.",
    "control.supervisor_timeout": "Agents and workers go on without a supervisor for so long, then end.",
    "control.launch_timeout": "Workers that are not ready by then are given up and started again.",
    "control.poll": "Interval of the one query for all jobs of the run.",
}


def fields() -> dict[str, msgspec.structs.FieldInfo]:
    """Every dotted key with its field, in the order of the reference."""
    return {
        f"{section}.{info.encode_name}": info
        for section, cls in SECTIONS.items()
        for info in msgspec.structs.fields(cls)
    }


def type_of(key: str, info: msgspec.structs.FieldInfo) -> str:
    """The type for people."""
    want, origin = info.type, get_origin(info.type)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in get_args(want))
    if origin is dict:
        return "mapping"
    if origin is tuple:
        return "list of words" if get_args(want)[0] is str else "list of numbers"
    if want is float and key == "batch.tolerance":
        return "number or percentage"
    if want is float or NoneType in get_args(want):
        return "duration"
    return {int: "whole number", bool: "true or false", str: "text"}[want]


def default_of(key: str, info: msgspec.structs.FieldInfo) -> str:
    """The default for people; "" when the meaning says it."""
    if info.required:
        return "required"
    default: Any = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
    if default in ("", (), None, {}) or key in ("elastic.min_nodes", "elastic.max_nodes"):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if type_of(key, info) == "duration":
        return format_duration(default) if default else "0"
    return str(default)


def reference() -> str:
    """docs/run-yaml.md."""
    parts = [_INTRODUCTION]
    for section, meaning in SECTION_MEANING.items():
        parts.append(f"## `{section}`\n\n{meaning}\n\n| key | type | default | meaning |\n|---|---|---|---|")
        for key, info in fields().items():
            if key.startswith(section + "."):
                default = default_of(key, info)
                cell = default if default in ("", "required") else f"`{default}`"
                parts.append(f"| `{info.encode_name}` | {type_of(key, info)} | {cell} | {MEANING[key]} |")
        parts.append("")
    parts.append(_SBATCH)
    parts.extend(f"| `{name}` | {reason} |" for name, reason in sorted(refused_options().items()))
    return "\n".join(parts) + "\n"


_INTRODUCTION = """# run.yaml

<!-- Written by scripts/generate_run_yaml_doc.py; change slurm_elastic/config_keys.py instead. -->

`slurm-elastic init` writes a commented file, `slurm-elastic check FILE` tests one and shows every fault with its line,
`slurm-elastic sizes FILE` shows the sizes it allows.

Durations: `30s`, `5m`, `1h30m`, `2d`, Slurm's `MM:SS`, `HH:MM:SS`, `D-HH:MM:SS`; a number alone is seconds. Unknown
keys, duplicate keys, anchors, aliases, merge keys and tags are faults. Variables such as `$HOME` are not expanded; a
leading `~` is.
"""

_SBATCH = """## Options that `base.sbatch` refuses

| option | why |
|---|---|"""
