"""The testbed itself: it comes and goes without a trace, and its faults are what they claim to be."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import mounts
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.processes import identify, running

pytestmark = pytest.mark.cluster

SMALL = Options(nodes=2, accounting=False)
SLEEP = "exec sleep 300"


def traces(cluster: Cluster, slot: int) -> list[str]:
    """Everything a testbed could have left on this machine."""
    at = str(cluster.directory)
    found = [f"process {one.arguments}" for one in running() if any(at in word for word in one.arguments)]
    found += [f"environment of {one.arguments}" for one in running() if at in one.environ.get("SLURM_CONF", "")]
    found += [f"mount {point}" for point in mounts.ours(cluster.directory, Path("/proc/self/mountinfo").read_text())]
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    found += [f"link {name}" for name in links if name.startswith((f"se{slot}br", f"se{slot}v"))]
    found += [f"file {at}"] if cluster.directory.exists() else []
    return found


def network_namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def namespace_is_alive(space: Path) -> bool:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/net").readlink() == space:
                return True
    return False


def test_a_testbed_comes_and_goes_and_leaves_nothing(testbed_ground: str) -> None:
    cluster = Cluster(f"{testbed_ground}-twice", Options(nodes=2, gpus=1))
    try:
        began = time.monotonic()
        assert cluster.up()
        assert time.monotonic() - began < 10
        assert not cluster.up()  # the same again: nothing to do
        slot = cluster.place.slot
        space = network_namespace(cluster.node_pids("n1")[0])
        said = cluster.tell("srun", "-q", "base", "-N2", "--gres=gpu:1", "hostname")
        assert sorted(said.split()) == ["n1", "n2"]
        cluster.submit("-q", "base", "-N2", "--wrap", "srun --overlap sleep 300")
        cluster.kill_node("n2")
        cluster.slow_controller()
    finally:
        cluster.down()
    cluster.down()  # nothing is there, nothing happens
    assert traces(cluster, slot) == []
    assert not namespace_is_alive(space)


def test_two_testbeds_side_by_side_know_nothing_of_each_other(testbed_ground: str) -> None:
    one, other = Cluster(f"{testbed_ground}-one", SMALL), Cluster(f"{testbed_ground}-other", SMALL)
    try:
        one.up()
        other.up()
        assert one.place.slot != other.place.slot
        job = one.submit("-N2", "--wrap", SLEEP)
        one.wait_job(job, "RUNNING", 20)
        assert other.queue() == ()
        one.down()
        assert other.tell("srun", "-N2", "hostname").split()
        assert other.health().whole
    finally:
        one.down()
        other.down()


def test_a_testbed_whose_start_was_killed_is_cleared_by_the_next_one(testbed_ground: str) -> None:
    cluster = Cluster(f"{testbed_ground}-half", SMALL)
    try:
        cluster.up()
        controller = cluster.daemons.controller()
        assert controller is not None
        controller.stop(patience_s=0)
        assert Cluster(cluster.name, SMALL).up()  # not whole: it is made anew
    finally:
        Cluster(cluster.name).down()
    assert not cluster.directory.exists()


def test_a_rootless_testbed_leaves_nothing_of_its_jobs(testbed_ground: str) -> None:
    cluster = Cluster(f"{testbed_ground}-rootless", Options(nodes=2, accounting=False, rootless=True))
    try:
        cluster.up()
        job = cluster.submit("-p", "base", "-N2", "--wrap", "srun --overlap sleep 300")
        cluster.wait_job(job, "RUNNING", 20)
        cluster.wait_until(lambda: len(cluster.workers()) == 2, 20)
        slot = cluster.place.slot
    finally:
        cluster.down()
    assert traces(cluster, slot) == []


def test_a_node_without_power_sends_nothing_and_comes_back(cluster: Cluster) -> None:
    job = cluster.submit("-q", "base", "-N2", "--no-kill", "--wrap", "srun --overlap --no-kill -N2 sleep 300")
    cluster.wait_until(lambda: len(cluster.workers(job=job)) == 2, 20)
    inside = [identify(pid) for pid in cluster.node_pids("n2")]
    assert len(inside) > 2
    cluster.kill_node("n2")
    assert cluster.node_pids("n2") == ()
    assert not any(process.alive for process in inside if process is not None)
    assert cluster.job_state(job) == "RUNNING"  # nobody has told the controller
    assert cluster.health().nodes["n2"]["power"] == "off"
    with pytest.raises(TestbedError, match="n2 is off"):
        cluster.run(["hostname"], node="n2")
    cluster.revive_node("n2")
    assert cluster.run(["hostname"], node="n2").stdout == "n2\n"


def test_a_cut_node_goes_on_by_itself_until_it_is_healed(cluster: Cluster) -> None:
    address = f"{cluster.place.network}.3"
    reach = ["bash", "-c", f"exec 3<>/dev/tcp/{address}/{cluster.place.node_port(3)}"]
    assert cluster.run(["timeout", "2", *reach]).returncode == 0
    inside = cluster.node_pids("n3")
    cluster.cut_network("n3")
    assert cluster.health().nodes["n3"] == {"state": "idle", "power": "on", "network": "cut"}
    assert cluster.run(["timeout", "1", *reach]).returncode != 0
    assert set(inside) <= set(cluster.node_pids("n3"))
    cluster.heal_network("n3")
    cluster.wait_until(lambda: cluster.run(["timeout", "2", *reach]).returncode == 0, 20)


def test_an_urgent_job_takes_the_nodes_of_an_elastic_one_by_its_qos(cluster: Cluster, tmp_path: Path) -> None:
    cluster.set_preemption(grace_s=30)
    script = tmp_path / "elastic.sh"
    script.write_text("#!/bin/bash\ntrap 'echo told; kill $!; exit 0' USR1\nsleep 300 &\nwait\n")
    heard = tmp_path / "heard"
    elastic = cluster.submit("-q", "elastic", "-N6", "--exclusive", "--signal=B:USR1@30", "-o", str(heard), str(script))
    cluster.wait_job(elastic, "RUNNING", 20)
    cluster.wait_until(heard.exists, 20)
    time.sleep(0.5)  # (a notice that comes before the script runs is lost, in Slurm)
    urgent = cluster.submit("-q", "urgent", "-N1", "--exclusive", "--wrap", "true")
    cluster.wait_job(urgent, "COMPLETED", 25)  # long before its grace time ends
    assert heard.read_text().startswith("told")


def test_workers_are_found_frozen_thawed_and_killed(cluster: Cluster) -> None:
    job = cluster.submit("-q", "base", "-N1", "-w", "n4", "-n2", "--wrap", "srun --overlap -n2 sleep 300")
    cluster.wait_until(lambda: len(cluster.workers("n4", job=job)) == 2, 20)
    frozen = cluster.freeze_worker("n4", local_rank=1)
    assert [one.process.stopped for one in cluster.workers("n4")] == [False, True]
    cluster.thaw_worker("n4")
    assert not any(one.process.stopped for one in cluster.workers("n4"))
    assert any(line.startswith("n4: slurmstepd") for line in cluster.leftovers())
    assert cluster.kill_worker("n4", local_rank=1) == frozen
    cluster.wait_until(lambda: len(cluster.workers("n4")) == 1, 10)


def test_the_controller_stops_sleeps_and_comes_back(cluster: Cluster) -> None:
    job = cluster.submit("-q", "base", "-N1", "--wrap", SLEEP)
    cluster.wait_job(job, "RUNNING", 20)
    cluster.slow_controller(1.5)
    began = time.monotonic()
    assert cluster.job_state(job) == "RUNNING"
    assert time.monotonic() - began > 0.5
    cluster.stop_controller()
    assert cluster.run(["scontrol", "ping"]).returncode != 0
    cluster.start_controller()
    cluster.wait_job(job, "RUNNING", 20)


def test_nodes_are_drained_marked_and_taken_back_and_jobs_suspended(cluster: Cluster) -> None:
    cluster.drain_node("n5")
    assert cluster.node_states()["n5"].startswith("drain")
    cluster.undrain_node("n5")
    cluster.fail_node("n6")
    assert cluster.node_states()["n6"].startswith("fail")
    cluster.undrain_node("n6")
    job = cluster.submit("-q", "base", "-N1", "--wrap", SLEEP)
    cluster.wait_job(job, "RUNNING", 20)
    cluster.suspend_job(job)
    assert cluster.job_state(job) == "SUSPENDED"
    cluster.resume_job(job)
    assert cluster.job_state(job) == "RUNNING"


def test_only_the_testbeds_own_disk_is_filled(cluster: Cluster) -> None:
    cluster.fill_disk(leave_bytes=8192)
    free = os.statvfs(cluster.place.disk)
    assert free.f_bavail * free.f_frsize <= 8192
    with pytest.raises(OSError, match="No space left"):
        (cluster.place.disk / "more").write_bytes(bytes(100_000))
    others = os.statvfs(cluster.directory)
    assert others.f_bavail * others.f_frsize > 100_000_000
    (cluster.place.disk / "more").unlink()
    cluster.free_disk()
    (cluster.place.disk / "more").write_bytes(bytes(100_000))
    (cluster.place.disk / "more").unlink()
