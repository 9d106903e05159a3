"""The time between `submit` and the first report of the supervisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_on_disk import make_run, requests_taken, write_run_status

from slurm_elastic.cli import status as status_command
from slurm_elastic.cli.main import run as command
from slurm_elastic.cli.submitted import Submitted, last_epoch, not_reported, record
from slurm_elastic.observe.status import SupervisorStatus
from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.slurm import command_client
from slurm_elastic.slurm.api import Job
from slurm_elastic.slurm.run_jobs import comment_of
from slurm_elastic.testing.memory_slurm import MemorySlurm

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemorySlurm:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    slurm = MemorySlurm()
    monkeypatch.setattr(command_client, "CommandSlurm", lambda: slurm)
    return slurm


def submitted(path: Path, slurm: MemorySlurm, job_id: int = 50, **changes: Any) -> RunDirectory:
    """A run whose last life ended as `changes` say, and whose base job waits in the queue."""
    run = make_run(path, **changes)
    record(run, Submitted(job_id=job_id, time=1.7e9, after_epoch=last_epoch(run)))
    comment = comment_of(run, "base-1")
    slurm.known_jobs[job_id] = Job(
        job_id=job_id, state="PENDING", user=slurm.user, reason="Resources", comment=comment, requeue=True
    )
    return run


def shown(run: str, capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    assert command(["status", run, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def report(run: RunDirectory, epoch: int, **changes: Any) -> None:
    write_run_status(
        run, supervisor=SupervisorStatus(epoch=epoch, host="n1", pid=7, time=9e9, started_at=9e9), **changes
    )


@pytest.mark.parametrize("before", [{"state": "stopped"}, {"state": "failed"}, {"status": None}])
def test_a_submitted_run_is_submitted_with_its_job_and_the_reason_why_it_waits(
    before: dict[str, Any], tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    submitted(tmp_path / "gpt", slurm, **before)

    found = shown("gpt", capsys)
    assert (found["state"], found["reason"]) == ("submitted", "base job 50 is PENDING: Resources")
    assert found["submitted"] == {
        "job_id": 50, "time": 1.7e9, "slurm_state": "PENDING", "slurm_reason": "Resources"
    }  # fmt: skip
    assert found.get("jobs", []) == []
    assert command(["status", "gpt"]) == 0
    assert "submitted  base job 50 is PENDING: Resources" in capsys.readouterr().out


def test_the_documented_keys_cover_a_submitted_run(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    submitted(tmp_path / "gpt", slurm, state="stopped")

    found = shown("gpt", capsys)
    documented = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    assert [key for part in (found, found["submitted"]) for key in part if f"`{key}`" not in documented] == []


def test_slurm_that_does_not_answer_leaves_it_submitted(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    submitted(tmp_path / "gpt", slurm, state="stopped")
    slurm.silent = "away"

    found = shown("gpt", capsys)
    assert found["state"] == "submitted"
    assert "base job 50 was submitted" in found["reason"] and "cannot be asked" in found["reason"]


@pytest.mark.parametrize(
    ("ends", "state"), [("CANCELLED", "stopped"), ("FAILED", "failed"), ("gone", "failed"), ("RUNNING", "submitted")]
)
def test_a_base_job_that_ends_before_its_supervisor_reports_is_said(
    ends: str, state: str, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    submitted(tmp_path / "gpt", slurm, state="stopped")
    slurm.forget(50) if ends == "gone" else slurm.end(50, ends)

    found = shown("gpt", capsys)
    assert found["state"] == state
    assert "logs/slurm-50.out" in found["reason"]


def test_the_list_asks_slurm_nothing(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    submitted(tmp_path / "gpt", slurm, state="stopped")

    assert command(["status", "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["submitted"]
    assert slurm.queries == 0


def test_the_supervisors_report_ends_it_whatever_the_clocks_say(
    tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = submitted(tmp_path / "gpt", slurm, state="stopped")
    replace_json(run.endpoint, {"epoch": 3, "job_id": 50})
    assert not_reported(run) is not None  # it listens, but status.json is still the old one

    report(run, 3)
    assert not_reported(run) is None
    assert shown("gpt", capsys)["state"] == "training"
    report(run, 3, state="stopped")
    assert shown("gpt", capsys)["state"] == "stopped"


def test_a_supervisor_that_begins_to_count_again_is_known_by_its_job(tmp_path: Path, slurm: MemorySlurm) -> None:
    run = submitted(tmp_path / "gpt", slurm, state="stopped")
    replace_json(run.endpoint, {"epoch": 1, "job_id": 50})
    report(run, 1)

    assert not_reported(run) is None


def test_watch_goes_on_while_the_job_waits_and_asks_slurm_rarely(
    tmp_path: Path, slurm: MemorySlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(tmp_path / "gpt", slurm, state="stopped")
    looks: list[float] = []

    def look_again(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            report(run, 3, state="stopped")

    monkeypatch.setattr(status_command.time, "sleep", look_again)
    assert command(["status", "gpt", "--watch"]) == 0
    assert len(looks) == 3
    assert slurm.queries == 1


@pytest.mark.parametrize("name", ["gpt", "50"])
@pytest.mark.parametrize("before", [{"state": "stopped"}, {"status": None}])
def test_stop_cancels_a_base_job_that_has_not_started(
    before: dict[str, Any], name: str, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = submitted(tmp_path / "gpt", slurm, **before)

    assert command(["stop", name, "--wait"]) == 0
    assert "cancelled base job 50, which had not started" in capsys.readouterr().out
    assert slurm.cancelled == [50]
    assert list(run.requests.iterdir()) == []
    assert shown("gpt", capsys)["state"] == "stopped"


def test_stop_finds_a_waiting_job_that_was_submitted_by_hand(
    tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = submitted(tmp_path / "gpt", slurm, status=None)
    (run.path / "submitted.json").unlink()

    assert command(["stop", "gpt"]) == 0
    assert slurm.cancelled == [50]


def test_stop_of_a_job_that_has_just_started_asks_its_supervisor(
    tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = submitted(tmp_path / "gpt", slurm, state="stopped")
    slurm.start(50, "n1")
    with requests_taken(run) as taken:
        assert command(["stop", "gpt"]) == 0

    assert (taken, slurm.cancelled) == ([{"ask": "stop"}], [])


def test_stop_without_a_job_and_without_slurm_say_so(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    submitted(tmp_path / "gpt", slurm, status=None)
    slurm.forget(50)

    assert command(["stop", "gpt"]) == 2
    assert "no base job in Slurm's queue" in capsys.readouterr().err
    slurm.silent = "away"
    assert command(["stop", "gpt"]) == 3
    assert "  fix: " in capsys.readouterr().err


def test_scale_of_a_run_that_has_not_started_names_its_job(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    submitted(tmp_path / "gpt", slurm, state="stopped")

    assert command(["scale", "gpt", "--nodes", "3"]) == 2
    assert "no supervisor of base job 50 has reported" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "advised"), [("finished", False), ("stopped", True), ("failed", True)])
def test_stop_of_a_run_that_is_over_advises_submit_only_where_that_would_work(
    state: str, advised: bool, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = make_run(tmp_path / "gpt", state=state)
    if state == "finished":
        run.done.write_text("{}")

    assert command(["stop", "gpt"]) == 2
    said = capsys.readouterr().err
    assert f"is over ({state})" in said
    assert ("slurm-elastic submit" in said) is advised


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_nothing_lives_in_a_run_that_is_over(state: str, tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    make_run(tmp_path / "gpt", state=state)

    found = shown("gpt", capsys)
    assert (found["jobs"], found["nodes"], found["workers"], found["pending_companions"]) == ([], 0, 0, 0)
    assert command(["status", "gpt"]) == 0
    assert "companion  " not in capsys.readouterr().out


def test_a_run_is_found_by_its_settings_file(tmp_path: Path, slurm: MemorySlurm, capsys: Capture) -> None:
    (tmp_path / "run.yaml").write_text("run: {name: gpt, dir: runs/gpt, command: [python]}\nbase: {nodes: 1}\n")

    assert command(["status", "run.yaml"]) == 2
    assert "the run of run.yaml was never submitted" in capsys.readouterr().err
    make_run(tmp_path / "runs" / "gpt")
    assert shown("run.yaml", capsys)["state"] == "training"


def deserted(path: Path, slurm: MemorySlurm, state: str | None) -> RunDirectory:
    """A run whose supervisor is silent since its base job 41 is in `state` (None: Slurm has forgotten it)."""
    run = make_run(path, state="draining", reason="Slurm takes the base job 41 back (SIGTERM)", age_s=22)
    if state:
        comment = comment_of(run, "base-1")
        slurm.known_jobs[41] = Job(job_id=41, state=state, user=slurm.user, reason="", comment=comment, requeue=True)
    return run


@pytest.mark.parametrize("state", ["CANCELLED", None])
def test_a_run_whose_base_job_has_left_slurm_says_so_and_what_is_to_be_done(
    state: str | None, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = deserted(tmp_path / "gpt", slurm, state)

    found = shown("gpt", capsys)
    assert (found["state"], found["stale"], found["workers"], found["jobs"]) == ("stopped", False, 0, [])
    for part in ("base job 41 has left Slurm", "it was draining: Slurm takes", "`slurm-elastic submit` goes on"):
        assert part in found["reason"]
    assert command(["status", "gpt", "--watch"]) == 0  # it ends: nothing more will come
    for asked in (["stop", "gpt"], ["scale", "gpt", "--nodes", "3"]):
        capsys.readouterr()
        assert command(asked) == 2
        said = capsys.readouterr().err
        assert "base job 41 has left Slurm" in said and "submit" in said
    assert list(run.requests.iterdir()) == []


@pytest.mark.parametrize(("state", "silent"), [("RUNNING", ""), ("PENDING", ""), ("NODE_FAIL", ""), (None, "away")])
def test_a_silent_supervisor_whose_base_job_lives_or_may_live_is_only_away(
    state: str | None, silent: str, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    deserted(tmp_path / "gpt", slurm, state)
    slurm.silent = silent

    found = shown("gpt", capsys)
    assert (found["state"], found["stale"]) == ("draining", True)


def test_a_run_directory_that_was_moved_is_not_submitted_at_its_old_place(
    tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    moved = make_run(tmp_path / "moved", state="stopped")
    moved.config.write_text(f"run: {{name: gpt, dir: {tmp_path}/old, command: [python]}}\nbase: {{nodes: 1}}\n")

    for named in ("moved", "moved/run.yaml"):
        assert command(["submit", named]) == 2
        said = capsys.readouterr().err
        assert str(moved.path) in said and f"{tmp_path}/old" in said and "checkpoint.dir" in said
    assert not (tmp_path / "old").exists()
    assert shown("moved", capsys)["state"] == "stopped"


def test_garbage_in_submitted_json_is_passed_over_with_a_warning(
    tmp_path: Path, slurm: MemorySlurm, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "gpt")
    (run.path / "submitted.json").write_bytes(b"\xff{")

    assert shown("gpt", capsys)["state"] == "training"
    assert f"remove it): {run.path}/submitted.json" in caplog.text


@pytest.mark.parametrize("lost", ["run.yaml", "token"])
def test_a_living_run_that_lost_its_settings_or_token_is_shown_and_stopped(
    lost: str, tmp_path: Path, slurm: MemorySlurm, capsys: Capture
) -> None:
    run = make_run(tmp_path / "gpt")
    run.journal.touch()
    (run.path / lost).unlink()

    assert shown("gpt", capsys)["state"] == "training"
    with requests_taken(run) as taken:
        assert command(["stop", "gpt"]) == 0
    assert taken == [{"ask": "stop"}]
