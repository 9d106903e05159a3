"""Jobs of other people, and runs that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.running import Running


def neighbour(cluster: Cluster, qos: str, nodes: int = 1) -> int:
    """A job of somebody else that keeps its nodes until it is cancelled."""
    return cluster.submit(f"-N{nodes}", "--exclusive", "-q", qos, "-o", "/dev/null", "--wrap", "exec sleep 3600")


@contextmanager
def a_run(cluster: Cluster, folder: Path, **settings: dict[str, object]) -> Iterator[Running]:
    """One that goes on until the block ends. After a failure its jobs are left to the cluster's own clean-up."""
    running = Running.submit(cluster, folder, **settings)
    yield running
    running.command("stop", str(running.run.path))
    running.wait_for_end()
