"""A run that changes size five times and crashes twice is the run that did not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.training.data import Line, Reader, samples_sha256
from tests.training.trainings import EPOCHS, GLOBAL_BATCH, SAMPLES, Plot, train
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

# Saves happen every 4 steps and when a generation drains, one step after it was asked to.
ELASTIC = (
    (4, Plot(stop_after=2)),  # does 1..3
    (2, Plot(die_at=6, die_rank=1)),  # 4, and 5 which is lost
    (3, Plot(stop_after=7)),  # 5..8
    (5, Plot(die_at=14, die_rank=3)),  # 9..12, and 13 which is lost
    (1, Plot(stop_after=13)),  # 13, 14
    (4, Plot()),  # 15, 16
)
WORLDS = [4, 4, 4, 2, 3, 3, 3, 3, 5, 5, 5, 5, 1, 1, 4, 4]


def run_all(directory: Path, kind: str, generations: tuple[tuple[int, Plot], ...]) -> list[dict[str, Any]]:
    """The ledger after these generations."""
    directory.mkdir()
    log = directory / "log"
    for size, plot in generations:
        codes = WorldOfProcesses(size, train, directory, replace(plot, kind=kind), log=log).wait()
        assert (codes[plot.die_rank] == -9) if plot.die_at else (codes == [0] * size), log.read_text()
    return [json.loads(line) for line in (directory / "ledger.jsonl").read_text().splitlines()]


def check_computed_on(directory: Path, lines: list[dict[str, Any]]) -> None:
    """What the ranks of each step really computed on is its global batch, and in all each sample once per epoch."""
    reader, cursor, seen = Reader(Line(SAMPLES, 1, epochs=EPOCHS)), 0, [0] * SAMPLES
    for line in lines:
        used: list[int] = []
        for rank in range(line["world"]):
            for text in (directory / f"used-{line['generation']}-{rank}.jsonl").read_text().splitlines():
                step, indices = json.loads(text)
                used += indices if step == line["step"] else []
        batch = reader.batch(cursor, GLOBAL_BATCH)
        assert sorted(used) == sorted(batch.tolist())
        assert line["samples_sha256"] == samples_sha256(batch)
        cursor += len(batch)
        for index in used:
            seen[index] += 1
    assert seen == [EPOCHS] * SAMPLES


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same training by one process, undisturbed."""
    return run_all(tmp_path_factory.mktemp("runs") / "fixed", "plain", ((1, Plot()),))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_six_worlds_and_two_crashes_train_as_if_nothing_happened(
    tmp_path: Path, kind: str, fixed: list[dict[str, Any]]
) -> None:
    lines = run_all(tmp_path / "run", kind, ELASTIC)

    assert [line["step"] for line in lines] == list(range(1, 17))
    assert [line["world"] for line in lines] == WORLDS
    assert [line["samples_sha256"] for line in lines] == [line["samples_sha256"] for line in fixed]
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in fixed], rel=1e-10)
    assert [line["lr"] for line in lines] == [line["lr"] for line in fixed]
    check_computed_on(tmp_path / "run", lines)


def test_a_crash_beside_a_save_in_the_background_loses_no_sample(tmp_path: Path, fixed: list[dict[str, Any]]) -> None:
    generations = ((2, Plot(die_at=10, background=True)), (3, Plot(background=True)))

    lines = run_all(tmp_path / "run", "plain", generations)

    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in fixed], rel=1e-10)
    check_computed_on(tmp_path / "run", lines)
