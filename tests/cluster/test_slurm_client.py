"""The command client against a real controller: what the contract says, and what only a real one can show."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm import templates
from slurm_elastic.slurm.api import BatchRequest
from slurm_elastic.slurm.command_client import CommandSlurm
from slurm_elastic.slurm.environment import scrubbed
from slurm_elastic.slurm.steps import mpi_step_argv, probe_argv, worker_step_argv

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

HOSTILE = """$(touch pwned) 'q' "d" \\ # x |y `id` \\\\ ü"""


@pytest.fixture
def slurm(cluster):
    return CommandSlurm(environ=cluster.env)


@pytest.fixture
def submit(slurm, tmp_path):
    """Submits a job that sleeps; cancels what is left at the end."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nexec sleep 300\n")
    ids = []

    def submit(token="", **options):
        wanted = {"nodes": "1", "time": "0-00:10:00", "output": "/dev/null", "chdir": str(tmp_path), **options}
        wanted = {name.replace("_", "-"): value for name, value in wanted.items()}
        ids.append(slurm.submit(BatchRequest(script=script, options=wanted, token=token)))
        return ids[-1]

    yield submit
    for job_id in set(ids):
        slurm.cancel(job_id)


def wait_for(slurm, job_id, state, timeout_s=60.0):
    until = time.monotonic() + timeout_s
    while True:
        found = slurm.jobs([job_id])
        if found and found[0].state == state:
            return found[0]
        assert time.monotonic() < until, f"job {job_id} is not {state} but {found}"
        time.sleep(0.3)


def srun(cluster, argv):
    done = subprocess.run(argv, env=scrubbed(cluster.env), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_job_is_found_by_its_token_whatever_is_in_it(slurm, submit, tmp_path):
    job_id = submit(token=HOSTILE, job_name=HOSTILE, nodes="2", exclusive=True, requeue=True, no_kill=True)
    job = wait_for(slurm, job_id, "RUNNING")

    assert submit(token=HOSTILE) == job_id
    assert slurm.jobs(token_prefix=HOSTILE) == (job,)
    assert (job.name, job.comment, job.requeue, job.time_limit_s) == (HOSTILE, HOSTILE, True, 600.0)
    assert len(job.nodes) == 2
    assert job.batch_host in job.nodes
    assert abs(job.start_time - time.time()) < 60
    assert not (tmp_path / "pwned").exists()


def test_a_rendered_script_says_the_same_when_it_is_submitted_by_hand(cluster, slurm, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/arguments\nsleep 300\n')
    python.chmod(0o755)
    options = {"job-name": HOSTILE, "comment": HOSTILE, "output": "/dev/null", "time": "0-00:10:00"}
    script = tmp_path / "base.sbatch"
    script.write_text(templates.render("base", options, {"run_dir": HOSTILE, "python": str(python)}))
    job_id = cluster.submit(str(script))
    try:
        job = wait_for(slurm, job_id, "RUNNING")
        cluster.wait_until((tmp_path / "arguments").exists, 20, "the keeper's arguments")

        assert (job.name, job.comment) == (HOSTILE, HOSTILE)
        assert (tmp_path / "arguments").read_text().splitlines()[3] == HOSTILE
    finally:
        slurm.cancel(job_id)


def test_worker_steps_start_where_they_are_told_beside_each_other(cluster, slurm, submit, tmp_path):
    job = wait_for(slurm, submit(nodes="2", exclusive=True), "RUNNING")
    last = job.nodes[-1]
    output = f"{tmp_path}/{last}-%t.log"
    command = ("bash", "-c", "echo $SLURM_LOCALID $SLURMD_NODENAME $SLURM_CPUS_PER_TASK")
    blocker = subprocess.Popen(
        worker_step_argv(job_id=job.job_id, node=last, generation=1, workers=1, cpus=1, command=("sleep", "60")),
        env=scrubbed(cluster.env),
    )
    try:
        step = worker_step_argv(
            job_id=job.job_id, node=last, generation=2, workers=2, cpus=1, command=command, output=output
        )
        srun(cluster, step)
        srun(cluster, probe_argv(job_id=job.job_id, node=job.nodes[0]))
        world = mpi_step_argv(
            job_id=job.job_id,
            nodes=job.nodes,
            generation=3,
            workers=2,
            cpus=1,
            mpi="none",
            command=("bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"),
        )
        ranks = dict(line.split() for line in srun(cluster, world).splitlines())
    finally:
        slurm.cancel(job.job_id)
        blocker.wait(timeout=30)

    assert [Path(output.replace("%t", rank)).read_text().split() for rank in "01"] == [
        ["0", last, "1"],
        ["1", last, "1"],
    ]
    assert ranks == {"0": job.nodes[0], "1": job.nodes[0], "2": last, "3": last}


def test_requeue_and_cancel_are_safe_to_repeat(slurm, submit):
    job_id = submit(requeue=True)
    wait_for(slurm, job_id, "RUNNING")
    slurm.requeue(job_id)
    job = wait_for(slurm, job_id, "PENDING")
    slurm.requeue(job_id)
    assert (job.restarts, job.nodes) == (1, ())

    slurm.cancel(job_id)
    slurm.cancel(job_id)
    slurm.cancel(987_654)
    wait_for(slurm, job_id, "CANCELLED")


def test_refusals_are_for_good_and_a_test_makes_no_job(slurm, submit, tmp_path):
    with pytest.raises(SlurmCommandError) as refusal:
        submit(partition="nowhere")
    assert not refusal.value.retryable
    with pytest.raises(SlurmCommandError):
        slurm.test_only(BatchRequest(script=tmp_path / "job.sh", options={"nodes": "9999"}))
    before = {job.job_id for job in slurm.jobs()}
    assert "to start at" in slurm.test_only(BatchRequest(script=tmp_path / "job.sh", options={"nodes": "1"}))
    assert {job.job_id for job in slurm.jobs()} == before


def test_what_the_cluster_is(cluster, slurm):
    nodes = slurm.nodes()
    partitions = slurm.partitions()

    assert slurm.version() >= (22, 5, 0)
    assert int(slurm.config()["KillWait"].split()[0]) > 0
    assert {node.partitions for node in nodes} <= {tuple(partitions), *((name,) for name in partitions)}
    assert [node.name for node in slurm.nodes([nodes[0].name, "n-unknown"])] == [nodes[0].name]
    assert all(row["Name"] == name for name, row in slurm.qos().items())


def test_a_stopped_controller_is_unknown_and_then_everything_is_as_before(cluster, slurm, submit):
    job_id = submit()
    wait_for(slurm, job_id, "RUNNING")
    cluster.stop_controller()
    try:
        with pytest.raises(SlurmUnknown):
            slurm.jobs([job_id])
        with pytest.raises(SlurmUnknown):
            slurm.cancel(job_id)
    finally:
        cluster.start_controller()

    def answers():
        try:
            return slurm.jobs([job_id]) != ()
        except SlurmUnknown:
            return False  # away still, or left alone for a moment

    cluster.wait_until(answers, 30, "an answer")
    assert slurm.jobs([job_id])[0].state == "RUNNING"
