"""Live transitions without Slurm: a scripted supervisor orders generations, real processes go through them."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slurm_elastic.wire import messages as m
from tests.training.living import EPOCHS, GLOBAL_BATCH, Director, seats, train
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

STEPS = EPOCHS * math.ceil(61 / GLOBAL_BATCH)


@pytest.fixture
def director(tmp_path: Path) -> Iterator[Director]:
    made = Director(tmp_path / "run")
    slow(made).touch()
    yield made
    made.close()


def workers(director: Director, launch: int, count: int, kind: str, out: Path) -> WorldOfProcesses:
    extra = director.environment(launch)
    if launch > 1:
        extra["SLURM_ELASTIC_STANDBY"] = "1"
    log = director.run.path / f"log-{launch}"
    return WorldOfProcesses(count, train, kind, str(slow(director)), str(out), log=log, extra=extra)


def started(director: Director, count: int, kind: str, folder: Path) -> tuple[WorldOfProcesses, list[m.Seat]]:
    """The first generation has made some steps."""
    first = workers(director, 1, count, kind, folder / "final.pt")
    everyone = seats(1, count)
    director.wait_for_ready(everyone, "training")
    director.wait_for_step(3)
    return first, everyone


def slow(director: Director) -> Path:
    """Training takes its time until this file is gone."""
    return director.run.path / "slow"


def reference(tmp_path: Path, kind: str) -> tuple[dict[int, m.StepDone], dict[str, torch.Tensor]]:
    """The same training by one worker that nothing happens to."""
    alone = Director(tmp_path / "reference")
    try:
        codes = workers(alone, 1, 1, kind, tmp_path / "reference.pt").wait()
        assert codes == [0], (alone.run.path / "log-1").read_text()
        return alone.steps, torch.load(tmp_path / "reference.pt", weights_only=True)
    finally:
        alone.close()


def check_same(director: Director, tmp_path: Path, kind: str) -> None:
    steps, state = reference(tmp_path, kind)
    assert sorted(director.steps) == sorted(steps) == list(range(1, STEPS + 1))
    for step, done in director.steps.items():
        assert done.samples_sha256 == steps[step].samples_sha256
        assert done.lr == pytest.approx(steps[step].lr)
        if done.loss is not None and steps[step].loss is not None:
            assert done.loss == pytest.approx(steps[step].loss, rel=1e-10)
    final = torch.load(tmp_path / "final.pt", weights_only=True)
    for name, value in state.items():
        torch.testing.assert_close(final[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp", "tp"])
def test_shrink_and_growth_keep_the_processes_and_the_training(director: Director, tmp_path: Path, kind: str) -> None:
    first, everyone = started(director, 3, kind, tmp_path)

    director.regroup(2, everyone[:2], (everyone[2],))
    told = director.wait_regrouped(2, 2)
    if kind == "ddp":
        assert sum(each.received_bytes for each in told) == 0  # replicas: nothing is lacking
    more = workers(director, 3, 2, kind, tmp_path / "final.pt")
    newcomers = seats(3, 2)
    director.wait_for_ready(newcomers, "standby")
    director.regroup(4, [*everyone[:2], *newcomers])
    told = director.wait_regrouped(4, 4)
    assert sum(each.received_bytes for each in told) > 0

    slow(director).unlink()
    assert first.wait(120, kill_rest=False) == [0, 0, 0], (director.run.path / "log-1").read_text()
    assert more.wait(120) == [0, 0], (director.run.path / "log-3").read_text()
    check_same(director, tmp_path, kind)
    assert {director.done_in[step] for step in director.steps} == {1, 2, 4}


def test_a_worker_that_dies_costs_no_step(director: Director, tmp_path: Path) -> None:
    first, everyone = started(director, 3, "ddp", tmp_path)

    first.signal(2, signal.SIGKILL)
    director.wait_for("peers stumble", lambda: director.said(m.Stumbled))
    director.regroup(2, everyone[:2], planned=False)

    director.wait_regrouped(2, 2)
    slow(director).unlink()
    assert first.wait(120, kill_rest=False)[:2] == [0, 0], (director.run.path / "log-1").read_text()
    check_same(director, tmp_path, "ddp")


def test_a_worker_that_is_silent_holds_nobody_up(director: Director, tmp_path: Path) -> None:
    """As behind a cut network: no connection ends, so the others must be freed from their collective."""
    first, everyone = started(director, 3, "ddp", tmp_path)

    first.signal(2, signal.SIGSTOP)
    director.regroup(2, everyone[:2], planned=False)

    director.wait_regrouped(2, 2)
    slow(director).unlink()
    director.wait_for_step(STEPS)
    first.signal(2, signal.SIGKILL)
    assert first.wait(120, kill_rest=False)[:2] == [0, 0], (director.run.path / "log-1").read_text()
    check_same(director, tmp_path, "ddp")


def test_a_shard_that_is_gone_is_said_to_be(director: Director, tmp_path: Path) -> None:
    first, everyone = started(director, 3, "fsdp", tmp_path)

    first.signal(2, signal.SIGKILL)
    director.wait_for("peers stumble", lambda: director.said(m.Stumbled))
    director.regroup(2, everyone[:2], planned=False)

    director.wait_for("it is told", lambda: director.said(m.RegroupFailed))
    told = [message for _, message in director.said(m.RegroupFailed) if isinstance(message, m.RegroupFailed)]
    assert "no worker that is left holds all of" in told[0].reason
    assert all(code != 0 for code in first.wait(120, kill_rest=False))


def test_a_second_loss_in_the_middle_of_a_change_is_one_more_change(director: Director, tmp_path: Path) -> None:
    first, everyone = started(director, 4, "ddp", tmp_path)

    first.signal(3, signal.SIGKILL)
    director.wait_for("peers stumble", lambda: director.said(m.Stumbled))
    first.signal(2, signal.SIGKILL)  # it is to be in the next generation, and will not come
    director.regroup(2, everyone[:3], planned=False)
    director.regroup(3, everyone[:2], planned=False)

    director.wait_regrouped(3, 2)
    slow(director).unlink()
    assert first.wait(120, kill_rest=False)[:2] == [0, 0], (director.run.path / "log-1").read_text()
    check_same(director, tmp_path, "ddp")


def test_a_model_that_lost_a_layer_is_refused_by_name(director: Director, tmp_path: Path) -> None:
    first, everyone = started(director, 2, "forgetful", tmp_path)

    director.regroup(2, everyone[:1], (everyone[1],))

    director.wait_for("it is told", lambda: director.said(m.RegroupFailed))
    told = [message for _, message in director.said(m.RegroupFailed) if isinstance(message, m.RegroupFailed)]
    assert "build(world) makes a model without model.3.bias" in told[0].reason
    assert all(code != 0 for code in first.wait(120, kill_rest=False))
