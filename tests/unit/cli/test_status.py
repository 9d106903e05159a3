from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_on_disk import make_run

from slurm_elastic.cli.main import run as command
from slurm_elastic.observe.problems import Problem
from slurm_elastic.observe.run_index import index_folder, known_runs, remember


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_run_is_shown_with_nodes_reason_notice_and_last_transition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "gpt", problems=(Problem(kind="slurm_unknown", problem="Slurm is away", hint="scontrol ping"),))

    assert command(["status", str(tmp_path / "gpt")]) == 0
    shown = capsys.readouterr().out
    for part in (
        "gpt  training  3 nodes train", "n[1-2]", "n7", "SIGUSR1: goes in", "120 of 500", "4 steps/s", "none yet",
        "shrink 4 → 3 workers: job 40 preempted [by QOS]", "! Slurm is away", "scontrol ping", "high",
    ):  # fmt: skip
        assert part in shown
    assert "last seen" not in shown


def test_a_silent_supervisor_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "gpt", age_s=95)

    assert command(["status", str(tmp_path / "gpt")]) == 0
    assert "supervisor last seen 1m35s ago" in capsys.readouterr().out


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "gpt", age_s=20)

    assert command(["status", str(tmp_path / "gpt"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["state"], shown["stale"], shown["done"]) == (1, "training", True, False)
    assert 20 <= shown["supervisor_age_s"] < 25
    documented = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    parts = (shown, shown["jobs"][0], shown["supervisor"], shown["last_transition"])
    assert [key for part in parts for key in part if f"`{key}`" not in documented] == []


def test_every_kind_of_problem_is_documented() -> None:
    import re

    root = Path(__file__).parents[3]
    kinds = re.findall(r'kind="(\w+)"', (root / "slurm_elastic" / "observe" / "problems.py").read_text())
    documented = (root / "docs" / "cli.md").read_text()

    assert len(kinds) > 8
    assert [kind for kind in kinds if f"`{kind}`" not in documented] == []


def test_a_run_is_found_by_the_id_of_any_of_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "here" / "gpt")
    make_run(tmp_path / "here" / "broken").status.write_text("{")

    assert command(["status", "42"]) == 0
    assert "gpt" in capsys.readouterr().out
    assert command(["status", "43"]) == 2
    assert "job 43 is in none of your runs" in capsys.readouterr().err


def test_without_arguments_all_runs_are_listed_from_the_index_and_from_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "here" / "one")
    far = make_run(tmp_path / "far" / "two", age_s=60)
    make_run(tmp_path / "here" / "new", status=None)
    make_run(tmp_path / "here" / "odd").status.write_text("{")
    folder = index_folder({"XDG_STATE_HOME": str(tmp_path / "state")})
    remember(folder, far.path)
    remember(folder, far.path)
    remember(folder, tmp_path / "deleted")

    assert command(["status", "--json"]) == 0
    rows = {Path(row["run_dir"]).name: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "one": "training", "two": "training", "new": "prepared", "odd": "unreadable"
    }  # fmt: skip
    assert rows["two"]["stale"] and not rows["one"]["stale"]
    assert command(["status"]) == 0
    assert "training (supervisor away)" in capsys.readouterr().out


def test_the_list_can_be_watched_and_shows_what_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "here" / "one")
    looks = []

    def until_the_second_look(_: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt
        make_run(tmp_path / "here" / "two")

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("slurm_elastic.cli.status.time.sleep", until_the_second_look)
    assert command(["status", "--watch"]) == 0
    shown = capsys.readouterr().out
    assert "one" in shown and "two" in shown


def test_no_runs_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["status"]) == 0
    assert "no runs" in capsys.readouterr().out


def test_a_finished_run_is_not_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "gpt", age_s=900, state="finished")
    run.done.write_text("done\n")

    assert command(["status", str(run.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["done"], shown["stale"]) == (True, False)
    assert command(["status", str(run.path), "--watch"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no run directory nowhere"),
        (["."], "not a run directory"),
        (["x", "--watch", "--json"], "exclude each other"),
        (["99999999999999999999"], "none of your runs"),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["status", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_index_survives_odd_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a b\tc'\"$(x)")
    folder = tmp_path / "index"
    remember(folder, run.path)

    assert [known.path for known in known_runs(folder)] == [run.path]
