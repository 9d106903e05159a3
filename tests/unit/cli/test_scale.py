from __future__ import annotations

from pathlib import Path

import pytest
from run_on_disk import make_run, requests_taken

from slurm_elastic.cli import requests
from slurm_elastic.cli.main import run as command
from slurm_elastic.errors import RequestNotTaken


@pytest.mark.parametrize(("asked", "nodes"), [("3", 3), ("max", None)])
def test_the_supervisor_is_asked_and_its_taking_is_awaited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, nodes: int | None
) -> None:
    run = make_run(tmp_path / "gpt")
    with requests_taken(run) as taken:
        assert command(["scale", str(run.path), "--nodes", asked]) == 0

    assert taken == [{"ask": "scale", "nodes": nodes}]
    assert f"asked for {asked} nodes; 3 train now" in capsys.readouterr().out


def test_a_request_that_nobody_takes_is_withdrawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "gpt")

    with pytest.raises(RequestNotTaken, match="was withdrawn"):
        requests.ask(run, {"ask": "stop"}, within_s=0.05)
    assert list(run.requests.iterdir()) == []


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("1", "outside 2 to 5"),
        ("6", "outside 2 to 5"),
        ("-1", "neither"),
        ("many", "neither"),
        ("3.5", "neither"),
        ("", "neither"),
        ("９", "neither"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, said: str
) -> None:
    run = make_run(tmp_path / "gpt")

    assert command(["scale", str(run.path), f"--nodes={nodes}"]) == 2
    assert said in capsys.readouterr().err
    assert list(run.requests.iterdir()) == []


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_run_that_is_over_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str) -> None:
    run = make_run(tmp_path / "gpt", state=state)

    assert command(["scale", str(run.path), "--nodes", "3"]) == 2
    assert f"is over ({state})" in capsys.readouterr().err


def test_a_run_that_has_not_begun_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "gpt", status=None)

    assert command(["scale", str(run.path), "--nodes", "3"]) == 2
    assert "has not started" in capsys.readouterr().err
