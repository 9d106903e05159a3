import subprocess
import sys

import pytest

from slurm_elastic import config
from slurm_elastic.cli.level0 import settings_of_job

IN_A_JOB = {"SLURM_JOB_NUM_NODES": "3", "SLURM_GPUS_ON_NODE": "4"}


def test_the_job_is_the_run(tmp_path):
    settings = settings_of_job(IN_A_JOB, tmp_path / "run", tmp_path, ("train.py", "--epochs", "3"))

    assert settings.run.command == ("python", "train.py", "--epochs", "3")
    assert (settings.run.layout, settings.elastic.min_nodes, settings.elastic.max_nodes) == ("single", 1, 3)
    assert settings.workers_per_node == 4
    assert config.loads(config.dump(settings), tmp_path / "run" / "run.yaml") == config.loads(
        config.dump(settings), tmp_path / "elsewhere.yaml"
    )


def test_other_programs_are_left_as_they_are(tmp_path):
    assert settings_of_job({}, tmp_path, tmp_path, ("./a.out", "x.py")).run.command == ("./a.out", "x.py")


def level0(tmp_path, *words):
    return subprocess.run(
        [sys.executable, "-m", "slurm_elastic.cli.level0", "--run-dir", str(tmp_path / "run"), "--", *words],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env=IN_A_JOB,
    )


def test_a_later_start_of_the_job_keeps_what_the_first_made(tmp_path):
    assert level0(tmp_path, "train.py", "--lr", "1e-3").returncode == 0
    first = (tmp_path / "run" / "run.yaml").read_text()
    assert level0(tmp_path, "train.py", "--lr", "5").returncode == 0

    assert (tmp_path / "run" / "run.yaml").read_text() == first
    assert config.load(tmp_path / "run" / "run.yaml").run.command == ("python", "train.py", "--lr", "1e-3")


@pytest.mark.parametrize("words", [(), ("",)])
def test_a_command_that_is_none_is_refused_without_a_traceback(tmp_path, words):
    done = level0(tmp_path, *words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr
