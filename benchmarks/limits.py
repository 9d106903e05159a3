"""What a benchmark's process may use of the machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence


def raise_descriptors() -> int:
    """Allow this process as many open sockets as it may have; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def split_cpus() -> tuple[list[int], list[int]]:
    """One processor for what is measured, the others for what makes its load. The same one where there is only one."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[:1], cpus[1:] or cpus[:1]


def stand_alone() -> None:
    """A session of its own: Linux may share processors by session, and the real ones are on nodes of their own."""
    os.setsid()


def pin(cpus: Sequence[int]) -> None:
    os.sched_setaffinity(0, cpus)
