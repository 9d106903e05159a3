"""Workers that stop without ending: the run goes on without them, and when they are back they have no say."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.testbed.cluster import Cluster
from tests.cluster.company import a_run, neighbour
from tests.cluster.fencing import assert_nobody_is_left_of, assert_one_generation_wrote_after_the_other

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_suspended_job_and_a_frozen_worker_count_as_lost_and_write_nothing_when_they_are_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    neighbour(cluster, "base", 4)
    with a_run(cluster, tmp_path, base={"nodes": 1}, elastic={"min_nodes": 1, "max_nodes": 2}) as running:
        running.wait_for_world(2)
        job, _ = running.companion()
        asleep = running.status().generation
        cluster.suspend_job(job)
        running.wait_for_world(1)
        assert any(problem.kind in ("suspended", "silent") for problem in running.status().problems)
        cluster.resume_job(job)
        running.wait_for_world(2, 120)
        assert_nobody_is_left_of(cluster, running, asleep)

        frozen = running.status().generation
        host = next(one for one in running.status().jobs if one.role == "base").nodes[0]
        cluster.freeze_worker(host)  # global rank 0, which writes
        running.wait(lambda status: status.generation > frozen, "a generation without the frozen worker")
        cluster.thaw_worker(host)
        running.wait(lambda status: (line := running.last_line()) is not None and line.generation > frozen, "steps")
        assert_nobody_is_left_of(cluster, running, frozen)
        assert_one_generation_wrote_after_the_other(running)
