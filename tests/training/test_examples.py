"""The scripts of docs/examples run through one shrink and one growth without Slurm, which has its tests elsewhere."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def run_example(rank: int, script: str, directory: Path, number: int, at_step: int) -> None:
    """Runs it in `directory`; rank 1 gets signal `number` in its optimizer step `at_step`. 0: never."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    os.chdir(directory)
    done = [0]

    def count(*_: Any) -> None:
        done[0] += 1
        if done[0] == at_step and rank == 1:
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(count)
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def run_sizes(script: str, directory: Path, number: int, sizes: tuple[int, int, int]) -> str:
    """Three generations; `number` ends the first two. What they printed."""
    log = directory / "log"
    for size, at_step in zip(sizes, (15, 15, 0), strict=True):
        codes = WorldOfProcesses(size, run_example, script, directory, number, at_step, log=log).wait()
        if not (at_step and number == signal.SIGKILL):
            assert codes == [0] * size, log.read_text()
    return log.read_text()


@pytest.mark.parametrize(
    "script", ["level1_ddp.py", "level1_fsdp2.py", "level2_ddp.py", "level2_fsdp2.py", "level2_fsdp2_tp.py"]
)
def test_it_goes_on_where_it_was_drained_at_other_sizes(script: str, tmp_path: Path) -> None:
    said = run_sizes(script, tmp_path, signal.SIGTERM, (3, 2, 3))

    lines = [json.loads(line) for line in (tmp_path / "elastic-run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 97))
    assert [world for world, _ in groupby(line["world"] for line in lines)] == [3, 2, 3]
    assert said.count("trained for 96 steps") == 1


def test_a_loop_of_its_own_leaves_when_told_and_goes_on(tmp_path: Path) -> None:
    run_sizes("level1_own_loop.py", tmp_path, signal.SIGTERM, (3, 2, 3))

    import torch

    assert torch.load(tmp_path / "own-checkpoint.pt", weights_only=True)["step"] == 200


@pytest.mark.parametrize("script", ["level0_ddp.py", "level0_fsdp2.py"])
def test_level_0_survives_being_killed_by_its_own_checkpoint(script: str, tmp_path: Path) -> None:
    said = run_sizes(script, tmp_path, signal.SIGKILL, (3, 2, 3))

    assert said.count("trained for 200 steps") == 1


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs an MPI launcher (Debian: openmpi-bin)")
def test_the_mpi_example_shrinks_too(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    code = (
        "import sys, pathlib; from tests.training.test_examples import run_example; from mpi4py import MPI; "
        f"run_example(MPI.COMM_WORLD.Get_rank(), 'level1_mpi.py', pathlib.Path({str(tmp_path)!r}), "
        f"{int(signal.SIGTERM)}, int(sys.argv[1]))"
    )
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = os.environ | root | {"OMP_NUM_THREADS": "1"}
    for size, at_step in ((2, 15), (1, 0)):
        command = [
            "mpiexec",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            str(size),
            sys.executable,
            "-c",
            code,
            str(at_step),
        ]
        done = subprocess.run(
            command, cwd=EXAMPLES.parents[1], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr

    lines = [json.loads(line) for line in (tmp_path / "elastic-run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 97))
    assert [world for world, _ in groupby(line["world"] for line in lines)] == [2, 1]
