"""The configuration files of a testbed, as text. Pure: nothing here reads or writes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from slurm_elastic.testbed.options import MESSAGE_TIMEOUT_S, Options
from slurm_elastic.testbed.place import DIRECTORY_VARIABLE, NAME_VARIABLE, Place

CLUSTER = "testbed"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Stand for GPUs where none can be made: Slurm only asks for character devices."""


def slurm_conf(place: Place, options: Options, *, host: str, user: str) -> str:
    """slurm.conf for controller and nodes of 22.05 and later."""
    sections = [
        _base(place, options, host=host, user=user),
        _preemption(options),
        _accounting(place, options) if options.accounting else [],
        _nodes(place, options, host),
        _partitions(options),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def _base(place: Place, options: Options, *, host: str, user: str) -> list[str]:
    at = place.directory
    return [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={host}({place.controller_address})",
        f"SlurmctldPort={place.port}",
        f"SlurmdPort={place.port + 1}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={place.munge_socket}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"StateSaveLocation={at}/state",
        f"SlurmdSpoolDir={at}/spool/%n",
        f"SlurmctldPidFile={at}/run/slurmctld.pid",
        f"SlurmdPidFile={at}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={at}/log/slurmctld.log",
        f"SlurmdLogFile={at}/log/slurmd-%n.log",
        f"ProctrackType=proctrack/{options.process_tracking}",
        "MpiDefault=none",
        "ReturnToService=2",
        f"SlurmdTimeout={options.slurmd_timeout_s}",
        "SlurmctldTimeout=30",
        "InactiveLimit=0",
        f"KillWait={options.kill_wait_s}",
        f"MessageTimeout={MESSAGE_TIMEOUT_S}",
        "RebootProgram=/bin/true",
        "MinJobAge=600",
        "TmpFS=/var/tmp",
        "DebugFlags=NO_CONF_HASH",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=500000",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",
        "JobRequeue=1",
        *(["GresTypes=gpu"] if options.gpus else []),
    ]


def _preemption(options: Options) -> list[str]:
    lines = ["PreemptMode=REQUEUE", f"PreemptType=preempt/{'qos' if options.accounting else 'partition_prio'}"]
    # an empty SlurmctldParameters= is a parse error
    if options.notice == "user-signal":
        lines.append("SlurmctldParameters=preempt_send_user_signal")
    return lines


def _accounting(place: Place, options: Options) -> list[str]:
    return [
        "PriorityType=priority/multifactor",
        "PriorityWeightQOS=10000",
        "AccountingStorageType=accounting_storage/slurmdbd",
        # (by an address that the nodes reach too, or sacct fails inside jobs)
        f"AccountingStorageHost={place.controller_address}",
        f"AccountingStoragePort={place.database_port}",
        f"AccountingStoragePass={place.munge_socket}",
        "AccountingStorageEnforce=qos,limits",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        *(["AccountingStorageTRES=gres/gpu"] if options.gpus else []),
    ]


def _nodes(place: Place, options: Options, host: str) -> list[str]:
    gpus = f" Gres=gpu:{options.gpus}" if options.gpus else ""
    lines = []
    for index, node in enumerate(options.node_names, 1):
        if place.rootless:
            where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={place.node_port(index)}"
        else:
            where = f"NodeAddr={place.network}.{index}"
        lines.append(f"NodeName={node} {where} CPUs={options.cpus} RealMemory={options.memory_mb}{gpus} State=UNKNOWN")
    return lines


def _partitions(options: Options) -> list[str]:
    if options.accounting:
        return ["PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"]
    preempted = f"PriorityTier=1 PreemptMode={options.preempt_mode} GraceTime={options.real_grace_s}"
    return [
        f"PartitionName=elastic Nodes=ALL MaxTime=INFINITE State=UP {preempted}",
        "PartitionName=base Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=OFF",
        "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF",
    ]


def gres_conf(options: Options, devices: Sequence[str]) -> str:
    return "".join(f"Name=gpu File={device}\n" for device in devices[: options.gpus])


def cgroup_conf(options: Options, version: tuple[int, int]) -> str:
    """cgroup.conf, or nothing where the release needs none."""
    if options.process_tracking == "cgroup":
        return "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n"
    return "CgroupPlugin=disabled\n" if version >= (23, 2) else ""


def slurmdbd_conf(place: Place, *, host: str) -> str:
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={place.munge_socket}",
            f"DbdHost={host}",
            f"DbdAddr={place.controller_address}",
            f"DbdPort={place.database_port}",
            "SlurmUser=root",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            f"LogFile={place.directory}/log/slurmdbd.log",
            f"PidFile={place.directory}/run/slurmdbd.pid",
            "",
        ]
    )


def hosts(place: Place, options: Options, *, host: str) -> str:
    lines = ["127.0.0.1 localhost", f"{place.controller_address} ctl {host}"]
    lines += [f"{place.network}.{index} {node}" for index, node in enumerate(options.node_names, 1)]
    return "\n".join(lines) + "\n"


RESOLV_CONF = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
"""A node has no DNS: it must fail at once, or the start of 24.11's slurmd waits 10 s for it."""


def env_sh(place: Place) -> str:
    """For a shell: Slurm's commands and `slurm-elastic testbed` mean this cluster."""
    values = {"SLURM_CONF": place.slurm_conf, NAME_VARIABLE: place.name, DIRECTORY_VARIABLE: place.directory}
    exports = [f"export {name}={shlex.quote(str(value))}" for name, value in values.items()]
    return "\n".join([*exports, 'export PATH="$PATH:/usr/sbin:/sbin"']) + "\n"
