"""What people read about a worker that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.agent.failure import ending_of, headline, read_tail
from slurm_elastic.rundir import RunDirectory


def test_the_first_line_names_the_worker_its_error_and_its_log_and_the_end_of_the_log_follows(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    log = run.worker_log(3, "n2", 1)
    log.parent.mkdir(parents=True)
    log.write_text("step 7\nTraceback (most recent call last):\nValueError: no such thing\n")

    ending = ending_of(run, 3, "srun: error: n2: task 1: Exited with exit code 1\n", 1)

    first, *rest = ending.detail.splitlines()
    assert first == "n2-1: ValueError: no such thing (see logs/gen-0003/n2-1.log)"
    assert rest[0] == "step 7"
    assert ending.exit_code == 1


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("step 7\nout of luck\n", "out of luck"),
        ("", ""),
        ("error: no such file\n  fix: make one\n", "error: no such file; fix: make one"),
        ("  fix: alone", "fix: alone"),
        (
            (
                "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'a.py', line 1\n[rank0]:     run()\n"
                "[rank0]: errors.UserMistake: no batch size\n[rank0]:   fix: set one\n[W1] a warning of the end\n"
            ),
            "errors.UserMistake: no batch size; fix: set one",
        ),
        (
            (
                "Traceback (most recent call last):\n  File 'a.py'\nKeyError: 1\n\nDuring handling:\n\n"
                "Traceback (most recent call last):\n  File 'a.py'\nPeerLost\n"
            ),
            "PeerLost",
        ),
        ("    run()\nRuntimeError: two\nlines\n", "lines"),
        ("Traceback (most recent call last):\n  File 'a.py', line", "File 'a.py', line"),
        ("Traceback (most recent call last):\n" + "  deep\n" * 40 + "KeyError: 1\nbye\n", "KeyError: 1"),
        ("Traceback (most recent call last):\n  File 'a.py'\nKeyError: 1\n" + "goes on\n" * 20, "goes on"),
    ],
)
def test_the_headline_is_the_error_with_its_fix(log: str, said: str) -> None:
    assert headline(log) == said


def test_escape_codes_of_a_worker_do_not_reach_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "n1-0.log"
    log.write_bytes(b"\x1b[31mValueError: no\x1b[0m\x1b]0;title\x07\x9b2J\r\nend\x00\n")

    assert read_tail(log).splitlines() == ["ValueError: no\ufffd2J", "end?"]
