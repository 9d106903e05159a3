"""T6: for a minute there is no Slurm to ask. Nothing is decided from that, and training goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.status import Status
from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.company import a_run, neighbour
from tests.cluster.fencing import assert_one_generation_wrote_after_the_other
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]

AWAY_S = 60
GRACE_S = 45  # so that a slow machine is no reason to miss it


def test_training_goes_on_and_nothing_is_decided(cluster: Cluster, tmp_path: Path) -> None:
    with a_run(cluster, tmp_path) as running:
        running.wait_for_world(3)
        companion, _ = running.companion()
        before, known = running.status(), len(kinds(running))
        stopped_at = time.time()
        with no_controller(cluster) as back_at:
            since = unknown_since(running.wait(lambda status: unknown_since(status) is not None, "Slurm is unknown"))
            while time.monotonic() < back_at:
                step = running.status().step
                now = running.wait(lambda status, step=step: status.step > step, "another step", 30)
                assert (now.state, now.generation, now.jobs) == ("training", before.generation, before.jobs)
            said = json.loads(running.command("status", str(running.run.path), "--json"))
            unknown = next(one for one in said["problems"] if one["kind"] == "slurm_unknown")
            assert stopped_at <= unknown["since"] == since <= said["supervisor"]["time"]
        back = running.wait(lambda status: unknown_since(status) is None, "Slurm answers")
        running.wait(lambda status: status.step > back.step, "another step")
        assert kinds(running)[known:] == ["slurm_silent", "slurm_answers"], running.story()
        assert (back.generation, back.jobs) == (before.generation, before.jobs)

        cluster.tell("scancel", str(companion))
        running.wait_for_world(2)
        running.wait_for_world(3, 120)
        assert running.companion()[0] != companion
        assert_one_generation_wrote_after_the_other(running)


def test_a_preemption_is_answered_and_an_order_that_needs_slurm_is_carried_out_later(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.set_preemption(grace_s=GRACE_S)
    neighbour(cluster, "base", 3)
    elastic = {"min_nodes": 1, "max_nodes": 3, "max_pending_companions": 2}
    with a_run(cluster, tmp_path, base={"nodes": 1}, elastic=elastic) as running:
        running.wait_for_world(3)
        grown = len(running.transitions())
        urgent = neighbour(cluster, "urgent")
        running.wait(lambda _: "notice" in kinds(running), "a notice")
        with no_controller(cluster):  # whether the workers for the smaller size could still be started or not
            running.wait(lambda status: unknown_since(status) is not None, "Slurm is unknown")
            running.command("scale", str(running.run.path), "--nodes", "1")
            running.wait(lambda _: "scale_requested" in kinds(running), "the order is heard")
            assert running.status().workers > 1  # no worker can be started for it
        running.wait_for_world(1, 120)
        cluster.wait_job(urgent, "RUNNING", 90)
        running.wait(lambda status: only_the_base_job(status), "no other job of the run", 120)
        running.wait(lambda status: unknown_since(status) is None, "Slurm answers")

        later = running.transitions()[grown:]
        assert sum(one.steps_lost for one in later) == 0, running.story()
        assert "worker_lost" not in kinds(running)
        assert running.status().supervisor.epoch == 1
        assert_one_generation_wrote_after_the_other(running)


@contextmanager
def no_controller(cluster: Cluster) -> Iterator[float]:
    """For a minute in all; the block is told its end (monotonic)."""
    cluster.stop_controller()
    back_at = time.monotonic() + AWAY_S
    yield back_at
    time.sleep(max(0.0, back_at - time.monotonic()))
    cluster.start_controller()


def unknown_since(status: Status) -> float | None:
    return next((problem.since for problem in status.problems if problem.kind == "slurm_unknown"), None)


def only_the_base_job(status: Status) -> bool:
    return [job.role for job in status.jobs] == ["base"] and status.pending_companions == 0


def kinds(running: Running) -> list[str]:
    return [event.kind for event in read_events(running.run.events) if event.kind != "checkpoint"]
