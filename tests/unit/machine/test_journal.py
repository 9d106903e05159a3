"""The journal and its replay: durable, tolerant of a torn end, the same decisions again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from machine.world import World, policy
from slurm_elastic.cli.replay import replay as replay_command
from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.machine import events as e
from slurm_elastic.machine.state import initial
from slurm_elastic.machine.step import step
from slurm_elastic.supervisor.journal import Journal, read, replay


def recorded(path: Path) -> World:
    """A short run in a make-believe cluster, its journal at `path`."""
    world = World(policy(), free=["c1", "c2", "c3"]).start()
    world.pass_time(20)
    world.feed(e.NoticeReceived(job_id=world.companions()[0], source="SIGUSR1", deadline=world.now + 20))
    world.pass_time(10)
    state = initial(world.policy)
    with Journal(path) as journal:
        journal.note_policy(1.0, world.policy)
        for now, event, actions in world.log:
            after, _ = step(state, event, now)
            journal.append(now, event, actions, after.reason, changed=after is not state)
            state = after
    return world


def test_a_replay_gives_the_same_state(tmp_path: Path) -> None:
    world = recorded(tmp_path / "journal.jsonl")

    assert replay(world.policy, read(tmp_path / "journal.jsonl")) == world.state


def test_a_journal_of_a_release_that_knew_no_live_transitions_replays(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    world = recorded(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for name in ("live", "stumble_patience"):
            line.get("policy", {}).pop(name, None)
        for action in line.get("actions", ()):
            for member in action.get("members", ()):
                member.pop("launch", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    assert replay(world.policy, read(path)) == world.state
    assert not any(line.get("policy", {}).get("live") for line in lines)


def test_ticks_that_order_nothing_are_not_written(tmp_path: Path) -> None:
    world = recorded(tmp_path / "journal.jsonl")
    entries = list(read(tmp_path / "journal.jsonl"))

    assert all(entry.actions for entry in entries if isinstance(entry.event, e.TimePassed))
    assert len(entries) < len(world.log)


@pytest.mark.parametrize("torn", [b'{"time":5.0,"ev', b"\x00", b'{"time":5.0,"event":{"event":"time_passed"}}'])
def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    world = recorded(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)

    assert replay(world.policy, read(path)) == world.state
    Journal(path).close()
    assert path.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"time":1.0}\n{"time":"x"}\n{"time":2.0}\n', encoding="utf-8")

    with pytest.raises(RunDirectoryError, match=r"journal\.jsonl:2"):
        list(read(path))


def test_no_journal_is_a_new_run(tmp_path: Path) -> None:
    assert replay(policy(), read(tmp_path / "none.jsonl")) == initial(policy())


def test_edited_settings_hold_from_the_next_start_and_not_for_the_past(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    world = recorded(path)
    smaller = policy(allowed_nodes=(1, 2, 3), max_nodes=3)

    assert replay(smaller, read(path)) == replace(world.state, policy=smaller)


def test_the_policy_is_noted_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.note_policy(1.0, policy())
        journal.note_policy(2.0, policy())
        journal.note_policy(3.0, policy(max_restarts=9))

    assert [entry.time for entry in read(tmp_path / "j")] == [1.0, 3.0]


def test_a_journal_in_a_missing_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "journal.jsonl")


def test_the_command_shows_decisions_with_reasons(tmp_path: Path) -> None:
    recorded(tmp_path / "journal.jsonl")
    result = CliRunner().invoke(replay_command, [str(tmp_path)])

    assert result.exit_code == 0, result.output
    assert "= record_transition kind=shrink" in result.output
    assert "because: " in result.output


def test_the_command_fails_when_recorded_orders_differ(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    recorded(path)
    path.write_text(path.read_text(encoding="utf-8").replace('"kind":"shrink"', '"kind":"grow"'), encoding="utf-8")
    result = CliRunner().invoke(replay_command, [str(path), "--json"])

    assert result.exit_code == 1
    differing = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert any(line["recorded"] for line in differing)


def test_the_command_stops_where_it_is_told(tmp_path: Path) -> None:
    recorded(tmp_path / "journal.jsonl")
    result = CliRunner().invoke(replay_command, [str(tmp_path), "--until", "3", "-v", "--json"])

    assert [json.loads(line)["entry"] for line in result.output.splitlines()] == [2, 3]


def test_the_command_names_a_missing_journal(tmp_path: Path) -> None:
    result = CliRunner().invoke(replay_command, [str(tmp_path / "none")])

    assert result.exit_code != 0
    assert "no journal" in str(result.exception)
