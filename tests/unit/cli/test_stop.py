from __future__ import annotations

from pathlib import Path

import pytest
from run_on_disk import make_run, requests_taken

from slurm_elastic.cli.main import run as command


def test_stop_asks_and_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "gpt")
    with requests_taken(run) as taken:
        assert command(["stop", str(run.path)]) == 0

    assert taken == [{"ask": "stop"}]
    assert "asked to stop at step 120" in capsys.readouterr().out


def test_stop_waits_for_the_end_when_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "gpt")
    with requests_taken(run, state="stopped", reason="asked by the user"):
        assert command(["stop", str(run.path), "--wait"]) == 0

    assert "stopped: asked by the user" in capsys.readouterr().out


def test_a_run_that_does_not_end_in_time_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "gpt")
    with requests_taken(run):
        assert command(["stop", str(run.path), "--wait", "--timeout", "0.1"]) == 1

    assert "has not ended within 0.1" in capsys.readouterr().err


def test_a_timeout_that_is_none_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "gpt")

    assert command(["stop", str(run.path), "--timeout", "soon"]) == 2
    assert "expected a duration" in capsys.readouterr().err
    assert list(run.requests.iterdir()) == []


@pytest.mark.parametrize("name", ["status", "events", "scale", "stop"])
def test_help_shows_examples_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown and "Exit codes:" in shown
