from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from run_on_disk import make_run

from slurm_elastic.cli.events import KINDS
from slurm_elastic.cli.main import run as command
from slurm_elastic.observe.events import EventLog


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "gpt")
    log = EventLog(run.events, clock=lambda: 1_700_000_000.0)
    log.append("checkpoint", 2, "published", step=100)
    log.append(
        "transition", 3, "job 40 preempted\x1b[31m", transition="shrink", from_workers=4, to_workers=3, stall_s=1.25
    )
    return run.path


def test_why_did_it_shrink_is_one_command(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["events", str(run_path), "--kind", "transition"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "gen 3" in lines[0] and "job 40 preempted?" in lines[0]
    assert "[transition=shrink from_workers=4 to_workers=3 stall_s=1.25]" in lines[0]


def test_json_is_one_object_per_line(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["events", str(run_path), "--json"]) == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"time": 1.7e9, "kind": "checkpoint", "generation": 2, "reason": "published", "step": 100}
    assert second["kind"] == "transition" and second["stall_s"] == 1.25


def test_of_an_error_with_its_traceback_only_the_headline_is_shown_but_json_has_all(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "n2-0: KeyError: 1 (see logs/x)\nTraceback ...\nKeyError: 1"
    EventLog(run_path / "events.jsonl").append("worker_failed", 4, reason, node="n2")

    assert command(["events", str(run_path), "--kind", "worker_failed"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("n2-0: KeyError: 1 (see logs/x)  [node=n2]")
    assert command(["events", str(run_path), "--kind", "worker_failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == reason


def test_follow_shows_what_comes_and_ends_with_the_run(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def later() -> None:
        EventLog(run_path / "events.jsonl").append("end", 3, "finished")
        (run_path / "DONE").write_text("done\n")

    timer = threading.Timer(0.1, later)
    timer.start()
    assert command(["events", str(run_path), "--json", "--follow"]) == 0
    timer.join()

    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == [
        "checkpoint", "transition", "end"
    ]  # fmt: skip


def test_a_run_without_events_yet_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["events", str(make_run(tmp_path / "new", status=None).path)]) == 0
    assert capsys.readouterr().out == ""


def test_an_unknown_kind_is_refused_with_those_that_there_are(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["events", str(run_path), "--kind", "transitions"]) == 2
    said = capsys.readouterr().err
    assert "did you mean transition?" in said and "checkpoint" in said


def test_every_kind_that_is_written_can_be_asked_for_and_is_documented() -> None:
    root = Path(__file__).parents[3]
    sources = "".join(path.read_text() for path in (root / "slurm_elastic" / "supervisor").glob("*.py"))
    written = set(re.findall(r'note\(\s*"(\w+)"', sources))
    documented = (root / "docs" / "cli.md").read_text()

    assert len(written) > 8
    assert written <= set(KINDS)
    assert [kind for kind in KINDS if f"`{kind}`" not in documented] == []
