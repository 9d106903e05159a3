"""What a testbed should look like: sizes, times and the way it takes nodes back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from slurm_elastic.errors import UserMistake

Notice = Literal["user-signal", "sigterm", "none"]
"""How a preempted job hears of it: the signal of its --signal, TERM to its steps, or only by its end.

"none" is a site without GraceTime: all that is left between the first TERM and KILL is KillWait.
"""

PreemptMode = Literal["REQUEUE", "CANCEL"]
ProcessTracking = Literal["linuxproc", "pgid", "cgroup"]

MESSAGE_TIMEOUT_S = 4
MOST_NODES = 100
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one testbed. Times in seconds, memory in MB. Raises UserMistake for what cannot work."""

    nodes: int = 4
    cpus: int = 4
    gpus: int = 0
    memory_mb: int = 3000
    grace_s: int = 20
    kill_wait_s: int = 5
    slurmd_timeout_s: int = 15
    preempt_mode: PreemptMode = "REQUEUE"
    notice: Notice = "user-signal"
    accounting: bool = True
    rootless: bool = False
    process_tracking: ProcessTracking = "linuxproc"
    disk_mb: int = 256
    users: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _within("--nodes", self.nodes, 1, MOST_NODES)
        _within("--cpus", self.cpus, 1, 1024)
        _within("--gpus", self.gpus, 0, 6 if self.rootless else 64)
        _within("--memory", self.memory_mb, 100, 100_000_000)
        _within("--grace", self.grace_s, 0, 86_400)
        _within("--kill-wait", self.kill_wait_s, 1, 3600)
        _within("--slurmd-timeout", self.slurmd_timeout_s, 2 * MESSAGE_TIMEOUT_S, 65_533)
        _within("--disk", self.disk_mb, 1, 1_000_000)
        _one_of("--preempt-mode", self.preempt_mode, get_args(PreemptMode))
        _one_of("--notice", self.notice, get_args(Notice))
        _one_of("--proctrack", self.process_tracking, get_args(ProcessTracking))
        for user in self.users:
            if not USER.fullmatch(user):
                raise UserMistake(f"--users: {user!r} is no user name", fix="give names of existing users, with commas")
        if self.rootless and self.accounting:
            raise UserMistake("--rootless has no accounting", fix="add --no-accounting")
        if self.rootless and self.process_tracking == "cgroup":
            raise UserMistake("--rootless cannot use --proctrack cgroup", fix="leave --proctrack out")

    @property
    def real_grace_s(self) -> int:
        """GraceTime of elastic jobs."""
        return 0 if self.notice == "none" else self.grace_s

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(1, self.nodes + 1))

    def node_index(self, node: str) -> int:
        """Number of a node, from 1. Raises UserMistake for a node that this testbed does not have."""
        if node not in self.node_names:
            raise UserMistake(f"no node {node!r} here", fix=f"the nodes are n1 to n{self.nodes}")
        return int(node[1:])


def _within(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserMistake(f"{flag} {value} is not possible", fix=f"give a number from {least} to {most}")


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserMistake(f"{flag} {value} is not known", fix=f"give one of {', '.join(allowed)}")
