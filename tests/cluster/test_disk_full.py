"""The disk of the checkpoints fills up while training saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.checkpoint.publish import newest
from slurm_elastic.observe.status import Status
from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.company import a_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_full_disk_is_reported_costs_no_state_and_is_over_when_there_is_space_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    checkpoints = cluster.place.disk / "checkpoints"
    saving = {"dir": str(checkpoints), "every": "1s"}
    alone = {"min_nodes": 1, "max_nodes": 1}
    with a_run(cluster, tmp_path, base={"nodes": 1}, elastic=alone, checkpoint=saving) as running:
        running.wait(lambda status: status.checkpoint is not None, "a checkpoint")
        full = running.wait(lambda status: is_filled(cluster) and complains(status), "a warning")
        running.wait(lambda status: status.step > full.step, "training goes on")
        found = newest(checkpoints, mark_bad=False)
        assert found.checkpoint is not None and found.warnings == ()

        cluster.kill_worker(running.status().jobs[0].nodes[0])
        running.wait(lambda status: status.generation > full.generation, "a restart with a full disk")
        running.wait(lambda status: status.state == "training" and status.step > found.checkpoint.step, "steps")
        cluster.free_disk()
        running.wait(lambda status: saved_step(status) > found.checkpoint.step, "a new checkpoint")
        running.wait(lambda status: not complains(status), "no warning")
        assert running.transitions()[0].kind == "restart"
        assert running.audit().clean
    assert newest(checkpoints, mark_bad=False).checkpoint is not None


def is_filled(cluster: Cluster) -> bool:
    """Also what the deletion of an old checkpoint has given back, which would be enough for the next."""
    cluster.fill_disk()
    return True


def complains(status: Status) -> bool:
    return any("No space left" in problem.problem for problem in status.problems)


def saved_step(status: Status) -> int:
    return status.checkpoint.step if status.checkpoint is not None else 0
