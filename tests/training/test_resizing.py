"""A run that changes size six times and crashes twice is the run that did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_elastic.training.data import Line, Reader, samples_sha256
from tests.training.trainings import EPOCHS, GLOBAL_BATCH, SAMPLES, Plot, train
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

ELASTIC = [
    (4, Plot("", stop_after=3)),
    (2, Plot("", die_at=11, die_rank=1)),
    (3, Plot("", stop_after=12)),
    (5, Plot("", die_at=18, die_rank=3)),
    (1, Plot("", stop_after=19)),
    (4, Plot("")),
]


def run_all(directory: Path, kind: str, generations: list[tuple[int, Plot]], background: bool) -> None:
    directory.mkdir()
    for size, plot in generations:
        plot = Plot(kind, plot.stop_after, plot.die_at, plot.die_rank, background)
        codes = WorldOfProcesses(size, train, directory, plot, log=directory / "log").wait()
        assert (codes[plot.die_rank] == -9) if plot.die_at else (codes == [0] * size), (directory / "log").read_text()


def ledger(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "ledger.jsonl").read_text().splitlines()]


def computed_on(directory: Path, generation: int, world: int, step: int) -> list[int]:
    found: list[int] = []
    for rank in range(world):
        for line in (directory / f"used-{generation}-{rank}.jsonl").read_text().splitlines():
            number, indices = json.loads(line)
            found += indices if number == step else []
    return sorted(found)


@pytest.mark.parametrize(("kind", "background"), [("ddp", False), ("fsdp", True)])
def test_six_sizes_and_two_crashes_train_the_same_as_a_fixed_size(tmp_path: Path, kind: str, background: bool) -> None:
    run_all(tmp_path / "elastic", kind, ELASTIC, background)
    run_all(tmp_path / "fixed", kind, [(2, Plot(""))], background)

    lines, fixed = ledger(tmp_path / "elastic"), ledger(tmp_path / "fixed")
    steps = EPOCHS * -(-SAMPLES // GLOBAL_BATCH)
    assert [line["step"] for line in lines] == [line["step"] for line in fixed] == list(range(1, steps + 1))
    assert [line["samples_sha256"] for line in lines] == [line["samples_sha256"] for line in fixed]
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in fixed], rel=1e-10)
    assert [line["lr"] for line in lines] == [line["lr"] for line in fixed]
    assert [line["world"] for line in lines if line["step"] in (1, 6, 10, 15, 18, 24)] == [4, 2, 3, 5, 1, 4]


def test_what_ranks_computed_on_is_each_sample_once_per_epoch(tmp_path: Path) -> None:
    run_all(tmp_path / "elastic", "plain", ELASTIC[:3] + ELASTIC[5:], False)

    reader, cursor, seen = Reader(Line(SAMPLES, 1, epochs=EPOCHS)), 0, [0] * SAMPLES
    for line in ledger(tmp_path / "elastic"):
        used = computed_on(tmp_path / "elastic", int(line["generation"]), int(line["world"]), int(line["step"]))
        batch = reader.batch(cursor, GLOBAL_BATCH)
        assert used == sorted(batch.tolist())
        assert line["samples_sha256"] == samples_sha256(batch)
        cursor += len(batch)
        for index in used:
            seen[index] += 1
    assert seen == [EPOCHS] * SAMPLES
