"""Urgent jobs take the nodes of companions, in every way in which a site may announce that (or not at all)."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from slurm_elastic.observe.summary import Transition
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Notice, PreemptMode
from tests.cluster.company import a_run, neighbour
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

GRACE_S = 40
ANNOUNCED: tuple[tuple[PreemptMode, Notice], ...] = (("REQUEUE", "user-signal"), ("CANCEL", "sigterm"))
UNANNOUNCED: tuple[PreemptMode, Notice] = ("REQUEUE", "none")


def test_companions_give_way_with_one_drain_and_without_a_lost_step(cluster: Cluster, tmp_path: Path) -> None:
    neighbour(cluster, "urgent", 2)
    elastic = {"min_nodes": 1, "max_nodes": 4, "max_pending_companions": 3}
    # a poll that would find the preemption by itself comes too late
    with a_run(cluster, tmp_path, base={"nodes": 1}, elastic=elastic, control={"poll": "60s"}) as running:
        running.wait_for_world(4, 120)
        before = len(running.transitions())
        for workers, (mode, notice) in zip((3, 2), ANNOUNCED, strict=True):
            cluster.set_preemption(mode=mode, grace_s=GRACE_S, notice=notice)
            waited_s = preempt(cluster, running, workers)
            shrink = running.transitions()[-1]
            assert (shrink.kind, shrink.from_workers, shrink.to_workers) == ("shrink", workers + 1, workers)
            assert shrink.steps_lost == 0, running.story()
            assert waited_s < GRACE_S
            assert_all_left_at_the_same_step(running, shrink)
        cluster.set_preemption(mode=UNANNOUNCED[0], notice=UNANNOUNCED[1])
        preempt(cluster, running, 1)
        assert len(running.transitions()) == before + 3, running.story()  # one for each
        assert running.audit().clean


def preempt(cluster: Cluster, running: Running, workers_left: int) -> float:
    """Returns when it has been done to a companion and training goes on; how long the urgent job waited, in seconds."""
    asked = time.monotonic()
    urgent = neighbour(cluster, "urgent")
    cluster.wait_job(urgent, "RUNNING", timeout_s=90)
    waited_s = time.monotonic() - asked
    running.wait_for_world(workers_left, 120)
    return waited_s


def assert_all_left_at_the_same_step(running: Running, shrink: Transition) -> None:
    logs = sorted(running.run.logs.glob(f"gen-{shrink.generation - 1:04d}/*-0.log"))
    left = [re.findall(r"left after step (\d+)", log.read_text()) for log in logs]
    assert len(left) == shrink.from_workers
    assert left[0] != []
    assert all(steps == left[0] for steps in left), left
