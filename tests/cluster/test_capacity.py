"""Capacity that comes in pieces, is more than wanted, or comes and goes all the time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_elastic.observe.events import read_events
from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.company import a_run, neighbour
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SCALING_TIMEOUT_S = 30
FLAPPING_S = 40
FREE_S = 4  # how long the nodes are free
MOST_ASKED = 6  # companions submitted meanwhile: the pauses between them are 5 s, 10 s, 20 s, ...


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
    before, asked = len(running.transitions()), submissions(running)
    step, began = running.status().step, time.monotonic()
    while time.monotonic() < began + FLAPPING_S:
        urgent = neighbour(cluster, "urgent", 5)
        cluster.wait_job(urgent, "RUNNING", 90)
        cluster.tell("scancel", str(urgent))
        time.sleep(FREE_S)
    chosen = 1 + (time.monotonic() - began) / SCALING_TIMEOUT_S  # transitions that the policy allows us to want
    followed = running.transitions()[before:]
    assert len([one for one in followed if one.kind == "grow"]) <= chosen, running.story()
    assert len(followed) <= 2 * chosen + 1, running.story()
    assert submissions(running) - asked <= MOST_ASKED, running.story()
    assert all(one.steps_lost == 0 for one in followed if one.planned)
    assert running.status().step > step
    running.wait(lambda status: status.step > step + 100, "training goes on")
    assert running.audit().clean


def submissions(running: Running) -> int:
    return sum(event.kind == "job_submitted" for event in read_events(running.run.events))


def companions(cluster: Cluster) -> tuple[str, ...]:
    """Those that run."""
    return tuple(line for line in cluster.queue() if "companion" in line and " RUNNING " in line)


def wait_for_companions(cluster: Cluster, count: int) -> None:
    cluster.wait_until(lambda: len(companions(cluster)) >= count, 60, f"{count} companions")
