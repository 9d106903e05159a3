from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from slurm_elastic.observe.events import EventLog, read_events


def test_an_event_has_time_kind_generation_reason_and_its_figures_side_by_side(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 12.3456)

    log.append("checkpoint", 3, "published", step=100, save_s=0.5)

    assert json.loads((tmp_path / "events.jsonl").read_text()) == {
        "time": 12.346, "kind": "checkpoint", "generation": 3, "reason": "published", "step": 100, "save_s": 0.5
    }  # fmt: skip


def test_events_read_back_as_written_whatever_the_reason_holds(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 1.0)
    written = [log.append("note", n, reason) for n, reason in enumerate(["", 'a "b"\n', "\x1b[31m", "🙂"])]

    assert list(read_events(tmp_path / "events.jsonl")) == written
    assert list(read_events(tmp_path / "absent")) == []


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).append("first", 1)
    with path.open("ab") as out:
        out.write(b'{"time":1,"kind":"to')

    EventLog(path).append("second", 2)

    assert [event.kind for event in read_events(path)] == ["first", "second"]


@pytest.mark.parametrize("line", [b"[]", b"1", b'{"kind":"x"}', b'{"time":"x","kind":"y"}', b"\xff\xfe", b""])
def test_lines_that_are_no_events_are_skipped(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(line + b"\n")

    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_a_full_disk_is_an_error_of_this_event_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("first", 1)
    with files_of_at_most(path.stat().st_size + 10), pytest.raises(OSError, match="in part"):
        log.append("second", 1)

    log.append("third", 1)
    assert [event.kind for event in read_events(path)] == ["first", "third"]
