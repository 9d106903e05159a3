from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.cli.main import run as command
from slurm_elastic.machine.policy import Policy
from slurm_elastic.supervisor.journal import Journal


@pytest.mark.parametrize(
    "text",
    ["", "run: {}\n", "no newline", '{"time": 1.0, "kind": "warning", "generation": 1, "reason": "x"}\n', "[]\n"],
)
def test_a_file_that_is_no_journal_is_a_users_mistake(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_text(text)

    assert command(["replay", str(tmp_path / "events.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "not a journal" in said and "  fix: " in said


def test_a_replay_ends_with_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.note_policy(1.0, Policy(allowed_nodes=(1,), max_nodes=1))

    assert command(["replay", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 entries decided again: every order as recorded\n"
