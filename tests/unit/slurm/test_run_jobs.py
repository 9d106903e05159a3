"""`SLURM_ELASTIC_UPDATE_GOLDEN=1 pytest ...` writes the golden scripts anew; read the difference before committing."""

import os
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.config_model import Base, Elastic, Run, RunConfig
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm import run_jobs

GOLDEN = Path(__file__).parents[2] / "golden"
RUN = RunDirectory(Path("/data/runs/demo"))
CONFIG = RunConfig(
    run=Run(name="demo", dir="/data/runs/demo", command=("python", "train.py"), workdir="/home/alice"),
    base=Base(nodes=2, qos="base", partition="main", account="acct", time=7200.0, gpus_per_node=4, sbatch={"mem": "0"}),
    elastic=Elastic(min_nodes=2, max_nodes=6, companion_nodes=1, qos="elastic", time=3600.0),
)
SINGLE = msgspec.structs.replace(CONFIG, run=msgspec.structs.replace(CONFIG.run, layout="single"))
MPI = msgspec.structs.replace(
    CONFIG, run=msgspec.structs.replace(CONFIG.run, layout="single", launcher="mpi"), base=Base(cpus_per_worker=2)
)


def base(config):
    return run_jobs.base_job(config, RUN, "slurm-elastic:0123456789ab:base-1", "base-1", python="/venv/bin/python")


def companion(config, nodes=1):
    comment = "slurm-elastic:0123456789ab:companion-00001"
    return run_jobs.companion_job(config, RUN, 7, nodes, comment, "companion-00001", python="/venv/bin/python")


@pytest.mark.parametrize(
    ("name", "job"),
    [("base", base(CONFIG)), ("companion", companion(CONFIG)), ("single", base(SINGLE)), ("mpi", base(MPI))],
)
def test_the_script_is_the_reviewed_one(name, job):
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("SLURM_ELASTIC_UPDATE_GOLDEN"):
        golden.write_text(job.text)

    assert job.text == golden.read_text()


def test_the_base_job_comes_back_and_outlives_its_nodes():
    options = base(CONFIG).request.options

    assert options["requeue"] is True
    assert options["no-kill"] is True
    assert options["open-mode"] == "append"
    assert (options["nodes"], options["qos"], options["time"]) == ("2", "base", "0-02:00:00")
    assert options["signal"] == "B:USR1@90"


def test_companions_are_never_requeued_by_slurm():
    options = companion(CONFIG).request.options

    assert "requeue" not in options
    assert options["no-requeue"] is True
    assert "no-kill" not in options
    assert (options["qos"], options["time"], options["signal"]) == ("elastic", "0-01:00:00", "B:USR1@60")
    assert companion(CONFIG, nodes=2).request.options["no-kill"] is True


def test_a_companion_without_a_time_limit_of_its_own_takes_the_base_jobs():
    config = msgspec.structs.replace(CONFIG, elastic=Elastic(max_nodes=6))
    options = companion(config).request.options

    assert (options["time"], options["qos"], options["partition"]) == ("0-02:00:00", "base", "main")


def test_a_single_job_takes_whatever_size_it_is_given():
    options = base(SINGLE).request.options

    assert (options["nodes"], options["qos"], options["requeue"]) == ("2-6", "elastic", True)


def test_nodes_are_taken_whole_unless_the_cpus_are_told():
    assert base(CONFIG).request.options["exclusive"] is True
    told = base(msgspec.structs.replace(CONFIG, base=Base(cpus_per_worker=3, workers_per_node=2))).request.options
    assert (told["ntasks-per-node"], told["cpus-per-task"]) == ("2", "3")
    assert "exclusive" not in told


def test_the_users_options_win():
    config = msgspec.structs.replace(CONFIG, base=Base(gpus_per_node=4, sbatch={"exclusive": False, "gres": "gpu:a:4"}))
    options = base(config).request.options

    assert "exclusive" not in options
    assert options["gres"] == "gpu:a:4"


def test_a_long_drain_gets_an_earlier_notice():
    config = msgspec.structs.replace(CONFIG, elastic=Elastic(graceful_shutdown_timeout=300.0))

    assert base(config).request.options["signal"] == "B:USR1@330"


def test_a_master_without_training_asks_for_one_task():
    options = base(msgspec.structs.replace(CONFIG, base=Base(nodes=0, gpus_per_node=4))).request.options

    assert (options["nodes"], options["ntasks"]) == ("1", "1")
    assert not {"gres", "exclusive", "no-kill"} & set(options)


def test_percent_signs_of_the_run_directory_are_meant_literally():
    job = run_jobs.base_job(CONFIG, RunDirectory(Path("/a%j")), "c", "base-1", python="python")

    assert job.request.options["output"] == "/a%%j/logs/slurm-%j.out"


class TestInARunDirectory:
    @pytest.fixture
    def run(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        run.create()
        return run

    def test_requests_write_their_scripts_where_they_stay_as_a_record(self, run):
        request = run_jobs.base_request(CONFIG, run, "base-1")
        companion = run_jobs.companion_request(CONFIG, run, 7, 1, "companion-00001")

        assert request.script == run.jobs / "base-1.sbatch"
        assert companion.script.read_text().startswith("#!/bin/bash")
        assert run_jobs.token_of(run, companion.token) == "companion-00001"

    def test_tokens_of_two_runs_never_meet_and_tell_nothing_of_the_secret(self, run, tmp_path):
        other = RunDirectory(tmp_path / "other")
        other.create()
        comment = run_jobs.comment_of(run, "companion-00001")

        assert run_jobs.token_of(run, comment) == "companion-00001"
        assert run_jobs.token_of(other, comment) == ""
        assert comment.startswith(run_jobs.comment_prefix(run))
        assert not any(part in run.token.read_text() for part in comment.split(":")[1:2])
