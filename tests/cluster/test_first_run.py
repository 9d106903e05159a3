"""A whole run on a real Slurm: submitted, grown, preempted, broken in every part, finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

GRACE_S = 45  # so that a slow machine is no reason to miss it


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Submits a run with 2 base nodes and one companion on a cluster without a node to spare; ends it afterwards."""
    started: list[Running] = []

    def start(steps: int = 100_000, spare: int = 3, **settings: dict[str, object]) -> Running:
        for _ in range(6 - spare):
            neighbour(cluster, "base")
        started.append(Running.submit(cluster, tmp_path, steps, **settings))
        return started[-1]

    yield start
    for running in started:
        if not running.run.done.exists():
            running.command("stop", str(running.run.path))
            running.wait_for_end(60)


def neighbour(cluster: Cluster, qos: str, seconds: int = 3600) -> int:
    """A job of somebody else, one node."""
    return cluster.submit("-N1", "--exclusive", "-q", qos, "-o", "/dev/null", "--wrap", f"sleep {seconds}")


def test_it_grows_gives_way_to_an_urgent_job_within_the_grace_time_and_finishes(
    cluster: Cluster, start: Callable[..., Running]
) -> None:
    cluster.set_preemption(grace_s=GRACE_S)
    running = start(steps=1800)
    running.wait_for_world(3)
    asked = time.monotonic()
    urgent = neighbour(cluster, "urgent", 5)
    cluster.wait_job(urgent, "RUNNING", timeout_s=120)
    waited_s = time.monotonic() - asked
    running.wait_for_world(2)
    running.wait(lambda status: running.run.done.exists(), "it finishes", 240)
    running.wait_for_end()

    told = running.transitions()
    assert [(one.kind, one.from_workers, one.to_workers) for one in told[:2]] == [("grow", 2, 3), ("shrink", 3, 2)]
    assert all(one.steps_lost == 0 for one in told if one.planned)
    assert running.audit().clean
    assert running.audit().steps == 1800
    assert waited_s < GRACE_S  # left alone, Slurm lets the grace time end first, and then some


def test_it_survives_kill_9_of_supervisor_worker_and_agent(cluster: Cluster, start: Callable[..., Running]) -> None:
    running = start()
    running.wait_for_world(3)
    cluster.kill_supervisor(running.run.path)
    running.wait(lambda status: status.supervisor.epoch == 2, "a new supervisor")
    running.wait_for_world(3)
    assert running.status().generation == 2  # nothing was restarted

    cluster.kill_worker(running.companion()[1])
    running.wait(lambda status: status.generation >= 3 and status.state == "training", "a restart")
    running.wait_for_world(3)
    cluster.kill_agent(running.companion()[1])
    running.wait(lambda status: status.generation >= 4 and status.state == "training", "another restart")
    running.wait_for_world(3)

    lost = [one.steps_lost for one in running.transitions() if not one.planned]
    assert len(lost) >= 2
    assert max(lost) < 1000  # a save is due every 3 s; on a slow machine it takes long
    assert running.audit().clean


def test_it_goes_on_without_a_node_that_lost_power(cluster: Cluster, start: Callable[..., Running]) -> None:
    running = start()
    running.wait_for_world(3)
    _, node = running.companion()
    cluster.kill_node(node)
    running.wait_for_world(2)
    running.wait(lambda _: len(running.transitions()) == 2, "the transition is told")

    assert not running.transitions()[-1].planned
    assert running.audit().clean


def test_a_stopped_run_leaves_nothing_and_goes_on_when_it_is_submitted_again(
    cluster: Cluster, start: Callable[..., Running]
) -> None:
    running = start()
    running.wait_for_world(3)
    running.command("stop", str(running.run.path))
    running.wait_for_end()
    before = running.last_line()
    running.command("submit", str(running.run.path.parent / "run.yaml"))
    running.wait(
        lambda status: status.state == "training" and status.step > (before.step if before else 0), "more steps"
    )

    assert before is not None
    assert running.audit().clean
