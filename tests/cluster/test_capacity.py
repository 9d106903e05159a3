"""Capacity that comes in pieces, is more than wanted, or comes and goes all the time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.company import a_run, neighbour
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SCALING_TIMEOUT_S = 30
FLAPPING_S = 40


def test_pieces_make_one_growth_surplus_is_given_back_and_flapping_is_not_followed(
    cluster: Cluster, tmp_path: Path
) -> None:
    neighbours = [neighbour(cluster, "base") for _ in range(5)]
    elastic = {
        "min_nodes": 1,
        "max_nodes": 4,
        "max_pending_companions": 3,
        "scaling_timeout": f"{SCALING_TIMEOUT_S}s",
    }
    with a_run(cluster, tmp_path, base={"nodes": 1}, elastic=elastic) as running:
        running.wait_for_world(1)
        for count, job in enumerate(neighbours, 1):
            cluster.tell("scancel", str(job))
            wait_for_companions(cluster, min(count, 3))
        running.wait_for_world(4, 120)
        assert [(one.kind, one.to_workers) for one in running.transitions()] == [("grow", 4)], running.story()
        assert len(companions(cluster)) == 3  # five nodes were free

        running.command("scale", str(running.run.path), "--nodes", "2")
        running.wait_for_world(2)
        cluster.wait_until(lambda: len(companions(cluster)) == 1, 60, "the others are released")

        flap(cluster, running)


def flap(cluster: Cluster, running: Running) -> None:
    """The companion's node is taken and given back every few seconds."""
    before, step, began = len(running.transitions()), running.status().step, time.monotonic()
    changes = 0
    while time.monotonic() < began + FLAPPING_S:
        urgent = neighbour(cluster, "urgent", 5)
        cluster.wait_job(urgent, "RUNNING", 90)
        cluster.tell("scancel", str(urgent))
        cluster.wait_until(lambda: companions(cluster) != (), 5 * SCALING_TIMEOUT_S, "a companion")
        changes += 2
    took_s = time.monotonic() - began
    followed = running.transitions()[before:]
    grown = [one for one in followed if one.kind == "grow"]
    assert len(grown) <= 1 + took_s / SCALING_TIMEOUT_S, running.story()
    assert len(followed) <= 2 * len(grown) + 1, running.story()
    assert len(followed) <= changes
    assert all(one.steps_lost == 0 for one in followed if one.planned)
    assert running.status().step > step
    running.wait(lambda status: status.step > step + 100, "training goes on")
    assert running.audit().clean


def companions(cluster: Cluster) -> tuple[str, ...]:
    """Those that run."""
    return tuple(line for line in cluster.queue() if "companion" in line and " RUNNING " in line)


def wait_for_companions(cluster: Cluster, count: int) -> None:
    cluster.wait_until(lambda: len(companions(cluster)) >= count, 60, f"{count} companions")
