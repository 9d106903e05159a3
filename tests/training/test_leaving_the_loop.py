"""A script that breaks out of its loop loses no committed step and no save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import slurm_elastic.training as elastic
from slurm_elastic.checkpoint.publish import newest
from slurm_elastic.errors import UserMistake
from slurm_elastic.observe.ledger import read_ledger
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training


def break_out(rank: int, directory: Path, then_save: bool) -> None:
    """In the body of step 3, after its optimizer step."""
    run = elastic.init(directory=directory, global_batch_size=4, checkpoint_every_steps=0, checkpoint_async=True)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.restore(model=model, optimizer=optimizer)
    for batch in run.steps(run.data(40, epochs=1)):
        for micro in batch.micro_batches():
            micro.backward(model(torch.ones(len(micro.indices), 2)).mean())
        run.average_gradients(model)
        optimizer.step()
        if batch.step == 3 and then_save:
            with pytest.raises(UserMistake, match="step 3 is computed and not committed"):
                run.save()
            batch.commit()
            assert run.save()
        if batch.step == 3:
            break


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("then_save", "steps"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_committed_steps_are_in_the_ledger_and_a_save_in_the_background_is_public(
    tmp_path: Path, world: int, then_save: bool, steps: list[int]
) -> None:
    codes = WorldOfProcesses(world, break_out, tmp_path, then_save, log=tmp_path / "log").wait()

    assert codes == [0] * world, (tmp_path / "log").read_text()
    lines = list(read_ledger(tmp_path / "ledger.jsonl"))
    assert [line.step for line in lines] == steps
    assert all(line.loss is not None for line in lines)
    found = newest(tmp_path / "checkpoints").checkpoint
    assert (found.step if found else 0) == (3 if then_save else 0)
