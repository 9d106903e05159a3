"""T3: the node that runs the base job's own script, and so the supervisor, loses power."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.status import Status
from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.running import Running

pytestmark = pytest.mark.cluster


def spare_the_hold(cluster: Cluster, job_id: int) -> None:
    """Slurm holds a requeued job back for 120 s; the test does not need to see that."""
    cluster.wait_job(job_id, "PENDING", 120)
    cluster.tell("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def trains_on(status: Status, nodes: int, epoch: int) -> bool:
    return status.supervisor.epoch == epoch and status.state == "training" and status.nodes == nodes


def test_the_run_resumes_by_itself_and_keeps_its_companion(cluster: Cluster, tmp_path: Path) -> None:
    running = Running.submit(cluster, tmp_path)
    running.wait_for_world(3)
    companion, companion_node = running.companion()
    running.wait(lambda status: status.checkpoint is not None, "a checkpoint")
    batch_host = cluster.job(running.job_id)["BatchHost"]

    cluster.kill_node(batch_host)
    spare_the_hold(cluster, running.job_id)
    running.wait(lambda status: trains_on(status, 3, epoch=2), "the run goes on", 120)
    running.wait_for_world(3)

    # The same companion: it waited with its node, and the new supervisor took it back.
    assert running.companion() == (companion, companion_node)
    assert cluster.job(companion)["JobState"] == "RUNNING"
    assert cluster.job(running.job_id)["Restarts"] == "1"
    assert batch_host not in {node for job in running.status().jobs for node in job.nodes}
    assert running.audit().clean
    resumed = [
        event.figures["resume_step"] for event in read_events(running.run.events) if event.kind == "supervisor_started"
    ]
    assert resumed[0] == 0 < resumed[1]

    running.command("stop", str(running.run.path), "--wait")
    running.wait_for_end()  # no companion is left behind
