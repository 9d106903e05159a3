"""run.yaml as typed values. All durations are seconds here; the file has human units ("30s", "2h", "1-12:00:00").

`config.py` reads and checks; this module only says what there is. Defaults here are the documented defaults.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Run(Section, frozen=True, kw_only=True):
    name: str
    dir: str  # absolute after reading; relative paths count from the file's folder
    command: tuple[str, ...]  # argv of one worker; "python" becomes the interpreter that runs slurm-elastic
    env: dict[str, str] = {}
    workdir: str = ""  # where workers start; default: the folder of run.yaml
    layout: Literal["companions", "single"] = "companions"
    launcher: Literal["torch", "mpi"] = "torch"
    mpi: str = "pmix"  # srun --mpi=, for launcher: mpi
    max_restarts: int = 3  # restarts in a row without a new committed step before the run gives up


class Base(Section, frozen=True, kw_only=True):
    nodes: int = 1
    qos: str = ""
    partition: str = ""
    account: str = ""
    time: float | None = None  # None: the partition's default
    gpus_per_node: int = 0
    workers_per_node: int = 0  # 0: one per GPU, or 1 without GPUs
    cpus_per_worker: int = 0  # 0: the node's CPUs divided by workers_per_node
    sbatch: dict[str, str | bool] = {}  # further long options of sbatch, also for companions


class Elastic(Section, frozen=True, kw_only=True):
    min_nodes: int = 1
    max_nodes: int = 1
    replica_increment_step: int = 1
    replica_discrete_values: tuple[int, ...] = ()  # allowed numbers of nodes; excludes the step
    companion_nodes: int = 1
    transition: Literal["auto", "live", "relaunch"] = "auto"
    qos: str = ""
    partition: str = ""
    time: float | None = None
    max_pending_companions: int = 4
    graceful_shutdown_timeout: float = 30.0  # a drain may take this long before workers are killed
    scaling_timeout: float = 60.0  # least time between two transitions that we chose
    faulty_scale_down_timeout: float = 0.0  # how long a lost node may be replaced before we shrink
    scale_up_snooze_time: float = 60.0  # first back-off after a growth that did not last; doubles, at most an hour


class Batch(Section, frozen=True, kw_only=True):
    global_batch_size: int = 0  # 0: the script brings its own batches
    micro_batch_size: int = 0  # 0: no limit
    policy: Literal["constant", "scale_batch", "tolerance"] = "constant"
    lr_rule: Literal["none", "linear", "sqrt"] = "none"
    tolerance: float = 0.1
    uneven: bool = True


class Checkpoint(Section, frozen=True, kw_only=True):
    dir: str = ""  # default: <run>/checkpoints
    every_steps: int = 0
    every: float = 0.0  # seconds; 0: only by steps
    keep: int = 3
    async_save: bool = msgspec.field(default=True, name="async")


class Control(Section, frozen=True, kw_only=True):
    interface: str = ""  # name of the network interface to listen on; "": the one that leads to the nodes
    heartbeat: float = 1.0
    worker_timeout: float = 10.0
    agent_timeout: float = 10.0
    supervisor_timeout: float = 900.0
    launch_timeout: float = 120.0
    poll: float = 15.0


class RunConfig(Section, frozen=True, kw_only=True):
    run: Run
    base: Base = Base()
    elastic: Elastic = Elastic()
    batch: Batch = Batch()
    checkpoint: Checkpoint = Checkpoint()
    control: Control = Control()

    @property
    def workers_per_node(self) -> int:
        return self.base.workers_per_node or self.base.gpus_per_node or 1

    @property
    def changes_in_place(self) -> bool:
        """Whether workers that can do so keep their memory when the run changes."""
        return self.elastic.transition != "relaunch" and self.run.launcher == "torch"
