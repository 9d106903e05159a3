from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from slurm_elastic.observe.ledger import Ledger, LedgerLine, audit, read_ledger
from slurm_elastic.wire.messages import StepDone


def done(step: int, sha: str = "") -> StepDone:
    return StepDone(step=step, world=4, samples=8, samples_sha256=sha or f"sha{step}", loss=1 / step, lr=0.1, time=step)


def line(step: int, *, generation: int = 1, sha: str = "") -> LedgerLine:
    return LedgerLine(step=step, generation=generation, world=4, samples=8, samples_sha256=sha or f"sha{step}")


def steps(path: Path) -> list[tuple[int, int]]:
    return [(entry["step"], entry["generation"]) for entry in map(json.loads, path.read_text().splitlines())]


def test_a_line_has_the_documented_keys(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.jsonl").append(3, [done(1)])

    written = json.loads((tmp_path / "ledger.jsonl").read_text())
    names = ["step", "generation", "world", "samples", "samples_sha256", "loss", "lr", "time"]
    assert list(written.items()) == list(zip(names, [1, 3, 4, 8, "sha1", 1.0, 0.1, 1.0], strict=True))


def test_steps_that_come_twice_are_written_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")

    assert ledger.append(1, [done(1), done(2)]) == 2
    assert ledger.append(1, [done(1), done(2), done(3)]) == 1
    assert ledger.append(1, [done(3)]) == 0
    assert steps(tmp_path / "ledger.jsonl") == [(1, 1), (2, 1), (3, 1)]


def test_going_back_replaces_the_lines_of_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(1, [done(step) for step in range(1, 8)])

    assert ledger.rewind(4) == 3
    ledger.append(2, [done(5), done(6)])

    assert steps(path) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert ledger.rewind(6) == 0
    assert ledger.rewind(0) == 6 and path.read_text() == "" and ledger.last is None


def test_a_new_supervisor_goes_on_where_the_killed_one_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(1, [done(1), done(2)])
    with path.open("ab") as out:
        out.write(b'{"step":3,"gen')

    ledger = Ledger(path)
    assert ledger.last is not None and (ledger.last.step, ledger.last.time) == (2, 2.0)
    ledger.append(1, [done(3)])
    assert steps(path) == [(1, 1), (2, 1), (3, 1)]


def test_a_line_that_only_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(1, [done(1), done(2)])
    path.write_bytes(path.read_bytes()[:-1])

    Ledger(path).append(1, [done(3)])

    assert steps(path) == [(1, 1), (2, 1), (3, 1)]


def test_a_full_disk_is_an_error_and_the_same_steps_can_be_written_later(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(1, [done(1)])
    with files_of_at_most(path.stat().st_size * 5 // 2), pytest.raises(OSError, match=r"bytes were written|too large"):
        ledger.append(1, [done(2), done(3), done(4)])

    assert steps(path) == [(1, 1), (2, 1)]
    assert ledger.append(1, [done(2), done(3), done(4)]) == 2
    assert steps(path) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_readers_take_the_last_line_of_a_step_and_skip_what_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(1, [done(1), done(2)])
    again = json.loads(path.read_text().splitlines()[0]) | {"generation": 2}
    with path.open("a") as out:
        out.write("hello\n" + json.dumps(again) + '\n{"step')

    assert [(entry.step, entry.generation) for entry in read_ledger(path)] == [(1, 2), (2, 1)]
    assert list(read_ledger(tmp_path / "absent")) == []


def test_an_audit_counts_what_was_lost_and_what_came_twice() -> None:
    reference = {step: line(step) for step in range(1, 6)}

    assert audit([line(1), line(2), line(3)], reference).clean
    gap = audit([line(1), line(3)])
    assert (gap.missing, gap.samples_lost, gap.samples_repeated, gap.clean) == ((2,), 8, 0, False)
    other = audit([line(1), line(2, sha="sha1")], reference)
    assert (other.different, other.samples_lost, other.samples_repeated) == ((2,), 8, 8)
    assert audit([]).clean
