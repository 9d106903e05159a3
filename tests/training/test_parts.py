"""The pure parts of the worker library, and what a user sees when something does not fit."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import slurm_elastic.training as elastic
from slurm_elastic.config_model import Batch
from slurm_elastic.errors import CheckpointError, UserMistake
from slurm_elastic.machine.batch import BatchPlan
from slurm_elastic.training.batches import indices_at
from slurm_elastic.training.consensus import OneRank
from slurm_elastic.training.control import Order
from slurm_elastic.training.data import Line, Reader, samples_sha256
from slurm_elastic.training.environment import read
from slurm_elastic.training.ledger import Entry, Ledger, LedgerFile
from slurm_elastic.training.loader import Data, plan_for
from slurm_elastic.training.mpi import ranks_of
from slurm_elastic.training.orders import _merged, agree_on_stop
from slurm_elastic.training.rng import seed_all
from slurm_elastic.training.settings import Settings, override
from slurm_elastic.wire.messages import StepDone
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training


@pytest.mark.parametrize(("length", "batch", "epochs"), [(10, 3, 2), (9, 3, 2), (2, 5, 3), (1, 1, 1), (7, 7, 2)])
def test_batches_of_an_epoch_use_every_sample_once_and_are_as_many_as_foretold(
    length: int, batch: int, epochs: int
) -> None:
    line = Line(length, seed=4, epochs=epochs)
    reader, step, cursor, used = Reader(line), 0, 0, [0] * length
    foretold = line.total_steps(0, 0, batch)
    while not line.is_over(step, cursor):
        assert line.total_steps(step, cursor, batch) == foretold
        indices = reader.batch(cursor, batch)
        step, cursor = step + 1, cursor + len(indices)
        for index in indices.tolist():
            used[index] += 1

    assert used == [epochs] * length
    assert step == foretold


def test_the_ledgers_hash_does_not_depend_on_the_order_of_samples() -> None:
    assert samples_sha256(np.array([10, 9, 2])) == samples_sha256(np.array([2, 9, 10]))
    assert samples_sha256(np.array([9, 10])) == hashlib.sha256(b"9,10").hexdigest()


def test_random_numbers_of_a_step_do_not_depend_on_what_was_drawn_before() -> None:
    seed_all(1, 5, 0)
    first = torch.rand(3), np.random.rand()
    torch.rand(17)
    seed_all(1, 5, 0)
    again = torch.rand(3), np.random.rand()
    seed_all(1, 5, 1)
    other = torch.rand(3)

    assert torch.equal(first[0], again[0]) and first[1] == again[1]
    assert not torch.equal(first[0], other)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_each_rank_its_micro_batches_from_where_the_run_stands(workers: int) -> None:
    dataset = TensorDataset(torch.arange(20))
    line = Line(20, seed=1, epochs=1)
    plan = BatchPlan(3, 8, 2)
    data = Data(dataset, line, {"num_workers": workers})
    data.start(1, 8, plan, 2)

    for step, cursor in ((2, 8), (3, 16)):  # the second is short: 4 samples
        indices = Reader(line).batch(cursor, 8)
        ranges = plan_for(indices, plan).micro_batches(2)
        found = [data.fetch(step, number)[0].tolist() for number in range(len(ranges))]
        assert found == [indices_at(indices, places) for places in ranges]


def test_an_order_known_to_one_rank_rules_for_all() -> None:
    alone = agree_on_stop(OneRank(), Order("notice", deadline=110.0), 4.0, 100.0)
    nobody, stopped = [0.0, 0.0, 0.0, math.inf, 4.0, 100.0, 0.0], [1.0, 1.0, 1.0, 103.0, 9.0, 500.0, 0.0]
    may_stay = [1.0, 0.0, 1.0, math.inf, 9.0, 500.0, 1.0]

    assert (alone.why, alone.left_s, alone.fits) == ("drained", 10.0, True)
    merged = _merged([nobody, stopped], "x")
    assert (merged.why, merged.save, merged.left_s, merged.fits) == ("stopped", True, 3.0, False)
    assert [_merged(rows, "x").may_stay for rows in ([nobody, may_stay], [may_stay, stopped])] == [True, False]


def test_the_ledger_hands_over_in_order_and_cuts_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    file = LedgerFile(path)
    file.begin(1, 0)
    ledger = Ledger(file.write, every_s=60)
    for step in (1, 2, 3):
        ledger.add(Entry(step, 2, np.array([step]), 0.5, None, 0.0))
    ledger.close()
    with path.open("a") as out:
        out.write('{"step": 4, "gener')  # a crash in the middle of a line

    again = LedgerFile(path)
    assert again.last_generation() == 1
    again.begin(2, 2)
    again.write((StepDone(step=3, world=1, samples=1, samples_sha256="x"),))
    lines = path.read_text().splitlines()
    assert [line[:30] for line in lines] == [
        f'{{"step": {n}, "generation": {g}, "w'[:30] for n, g in ((1, 1), (2, 1), (3, 2))
    ]


def test_a_failure_to_write_the_ledger_stops_the_training() -> None:
    def full(steps: tuple[StepDone, ...]) -> None:
        raise OSError(28, "No space left on device")

    ledger = Ledger(full, every_s=60)
    ledger.add(Entry(1, 1, np.array([1]), None, None, 0.0))

    with pytest.raises(OSError, match="No space"):
        ledger.flush()


def test_a_batch_size_that_contradicts_run_yaml_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match="is 16"):
        override(Settings(batch=Batch(global_batch_size=16)), {"global_batch_size": 32}, standalone=False)


def test_a_rank_that_is_no_number_is_named() -> None:
    with pytest.raises(UserMistake, match="RANK='x'"):
        read({"RANK": "x", "WORLD_SIZE": "2"})


def test_mpi_processes_that_are_each_alone_are_told_about_srun() -> None:
    class Lonely:
        def Get_size(self) -> int:  # noqa: N802 - mpi4py's name
            return 1

    with pytest.raises(UserMistake, match="--mpi=list"):
        ranks_of(Lonely(), launched=4)


def misfits(rank: int, directory: Path) -> None:
    run = elastic.init(seed=0, directory=directory, global_batch_size=4)
    model = nn.Linear(2, 1)
    if (directory / "checkpoints" / "latest").exists():
        with pytest.raises(CheckpointError, match="momentum"):  # the optimizer's state would be left behind
            run.restore(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(CheckpointError, match="extra"):
            run.restore(model=nn.ModuleDict({"extra": nn.Linear(1, 1)}))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run.restore(model=model, optimizer=optimizer)
        with pytest.raises(CheckpointError, match="data has changed"):
            next(run.steps(run.data(13, epochs=2)))
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.restore(model=model, optimizer=optimizer)
    for batch in run.steps(run.data(12, epochs=1)):
        for micro in batch.micro_batches():
            micro.backward(model(torch.ones(len(micro.indices), 2)).mean())
        optimizer.step()


def test_what_does_not_fit_the_checkpoint_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        codes = WorldOfProcesses(1, misfits, tmp_path, log=tmp_path / "log").wait()
        assert codes == [0], (tmp_path / "log").read_text()


@pytest.mark.parametrize("survives", [True, False])
def test_a_peer_that_is_lost_while_a_step_is_committed(survives: bool) -> None:
    """The step counts: only what ranks tell each other about the one before has failed."""

    def lose(batch: elastic.Batch) -> None:
        raise RuntimeError("gloo: Connection closed by peer")

    batch = elastic.Batch(
        1,
        np.arange(4),
        BatchPlan(workers=1, global_batch=4, micro_batch=4, lr_factor=1.0),
        0,
        seed=None,
        modules=(),
        fetch=lambda step, number: None,
        on_commit=lose,
        survives=lambda error: survives,
    )
    if survives:
        with batch:
            pass
    else:
        with pytest.raises(RuntimeError, match="closed by peer"), batch:
            pass

    assert (batch.is_committed, batch.is_lost) == (True, survives)
