"""Live transitions on a real Slurm: processes stay, nodes come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("train_live.py")
GRACE_S = 45


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> Iterator[Running]:
    """2 base nodes and one companion, on a cluster without a node to spare."""
    cluster.set_preemption(grace_s=GRACE_S)
    for _ in range(3):
        cluster.submit("-N1", "--exclusive", "-q", "base", "-o", "/dev/null", "--wrap", "sleep 3600")
    env = {"STEPS": "2500", "OMP_NUM_THREADS": "1"}
    started = Running.submit(cluster, tmp_path, run={"command": ["python", str(SCRIPT)], "env": env})
    yield started
    if not started.run.done.exists():
        started.command("stop", str(started.run.path))
        started.wait_for_end(60)


def test_growth_preemption_and_a_killed_worker_keep_the_others_running(cluster: Cluster, running: Running) -> None:
    running.wait_for_world(3)
    urgent = cluster.submit("-N1", "--exclusive", "-q", "urgent", "-o", "/dev/null", "--wrap", "sleep 5")
    cluster.wait_job(urgent, "RUNNING", timeout_s=120)
    running.wait_for_world(2)
    running.wait_for_world(3, 150)
    cluster.kill_worker(running.companion()[1])
    running.wait(lambda status: len(running.transitions()) >= 4, "a live loss")
    running.wait(lambda status: running.run.done.exists(), "it finishes", 240)
    running.wait_for_end()

    told = running.transitions()
    assert [(one.kind, one.from_workers, one.to_workers) for one in told[:3]] == [
        ("grow", 2, 3),
        ("shrink", 3, 2),
        ("grow", 2, 3),
    ]
    assert {one.mode for one in told} == {"live"}, running.story()
    assert all(one.steps_lost == 0 for one in told)
    audit = running.audit()
    assert audit.clean
    assert audit.steps == 2500
