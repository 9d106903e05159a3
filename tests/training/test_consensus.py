"""The agreement of real processes: what its thread must not break."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from slurm_elastic.training.consensus import TorchAgreement
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

PATIENCE_S = 40.0


def agree(rank: int) -> None:
    dist.init_process_group("gloo")
    agreement = TorchAgreement()
    for step in range(50):  # each sum is that of one boundary, in whatever order the threads of the ranks run
        agreement.launch((float(step), float(rank == step % 2)))
        assert agreement.take() == [2.0 * step, 1.0]
        if step % 10 == 9:
            assert agreement.exchange([rank, step]) == [[0.0, step], [1.0, step]]


def test_ranks_take_the_sum_of_the_same_boundary(tmp_path: Path) -> None:
    assert WorldOfProcesses(2, agree, log=tmp_path / "log").wait() == [0, 0], (tmp_path / "log").read_text()


def lose_a_rank(rank: int, directory: Path) -> None:
    dist.init_process_group("gloo")
    agreement = TorchAgreement()
    agreement.launch((1.0,))
    assert agreement.take() == [2.0]
    if rank == 1:
        return  # its end does not wait for anybody, and closes the connection
    agreement.launch((1.0,))
    with pytest.raises(RuntimeError):
        agreement.take()
    agreement.launch((1.0,))  # the thread is still there
    with pytest.raises(RuntimeError):
        agreement.take()
    (directory / "raised").touch()


def test_a_lost_rank_is_told_by_take(tmp_path: Path) -> None:
    codes = WorldOfProcesses(2, lose_a_rank, tmp_path, log=tmp_path / "log").wait()

    assert codes == [0, 0], (tmp_path / "log").read_text()
    assert (tmp_path / "raised").exists()


def leave(rank: int, directory: Path) -> None:
    if rank == 0:
        atexit.register((directory / "left").touch)  # runs after those of the agreement
    dist.init_process_group("gloo")
    agreement = TorchAgreement()
    agreement.launch((1.0,))
    assert agreement.take() == [2.0]
    if rank == 0:
        agreement.launch((1.0,))
        assert not agreement.is_ready
        return
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()  # there is no thread here
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    end = time.monotonic() + PATIENCE_S
    while not (directory / "left").exists():
        assert time.monotonic() < end, "rank 0 waits for this one"
        time.sleep(0.01)


def test_the_thread_holds_up_no_exit_with_a_question_in_flight_nor_that_of_a_fork(tmp_path: Path) -> None:
    codes = WorldOfProcesses(2, leave, tmp_path, log=tmp_path / "log").wait(2 * PATIENCE_S)

    assert codes == [0, 0], (tmp_path / "log").read_text()
