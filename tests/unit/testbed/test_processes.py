"""Processes are ended only when they are the recorded ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed.daemons import descendants
from slurm_elastic.testbed.processes import Process, identify, record, recorded, running, start, wait_until

Start = Callable[..., Process]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Start a bash script; all of them end with the test."""
    started: list[Process] = []

    def begin(script: str, **environ: str) -> Process:
        process = start(
            ["bash", "-c", script],
            log=tmp_path / "log",
            pidfile=tmp_path / f"{len(started)}.process",
            environ={"PATH": os.defpath, **environ},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.signal(signal.SIGCONT)
        process.stop(patience_s=0)


def test_a_started_process_is_recorded_lives_in_its_own_session_and_logs(begin: Start, tmp_path: Path) -> None:
    process = begin("echo hello; exec sleep 60")
    assert recorded(tmp_path / "0.process") == process
    assert process.alive
    assert os.getsid(process.pid) == process.pid
    wait_until(lambda: (tmp_path / "log").read_text() == "hello\n", 10, "its output")


def test_a_process_holds_none_of_our_descriptors(begin: Start) -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        process = begin("exec sleep 60")
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", 10, "sleep")
        assert {path.name for path in Path(f"/proc/{process.pid}/fd").iterdir()} == {"0", "1", "2"}
    finally:
        os.close(ours)
        os.close(theirs)


def test_stop_asks_first_and_kills_what_does_not_listen(begin: Start, tmp_path: Path) -> None:
    kind = begin("trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.02; done")
    wait_until(lambda: "ready" in (tmp_path / "log").read_text(), 10, "trap")
    kind.stop(patience_s=10)
    assert not kind.alive
    assert "bye" in (tmp_path / "log").read_text()
    deaf = begin("trap '' TERM; echo deaf; while :; do sleep 0.02; done")
    wait_until(lambda: "deaf" in (tmp_path / "log").read_text(), 10, "trap")
    deaf.stop(patience_s=0.1)
    assert not deaf.alive
    deaf.stop(patience_s=1)  # again: nothing happens


def test_a_process_that_only_has_the_same_pid_is_left_alone(begin: Start) -> None:
    process = begin("exec sleep 60")
    other = Process(process.pid, process.start - 1)
    assert not other.alive
    assert not other.signal(signal.SIGKILL)
    other.stop(patience_s=0)
    assert process.alive


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = identify(child.pid)
    assert process is not None
    wait_until(lambda: not process.alive, 10, "its end")
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()
    assert identify(child.pid) is None


def test_a_torn_record_names_no_process(tmp_path: Path) -> None:
    path = tmp_path / "x.process"
    assert recorded(path) is None
    for text in ("", "12", "12 x", "1 2 3"):
        path.write_text(text)
        assert recorded(path) is None
    record(path, Process(12, 34))
    assert recorded(path) == Process(12, 34)


def test_processes_are_found_by_their_environment_with_all_below_them(begin: Start) -> None:
    process = begin("sleep 60 & wait", WHOSE="mine")
    everything: list[int] = []

    def both() -> bool:
        now = list(running())
        mine = [one for one in now if one.process == process]
        everything[:] = [one.process.pid for one in (*mine, *descendants(now, mine))]
        return len(everything) == 2

    wait_until(both, 10, "a child")
    names = {one.name: one.environ.get("WHOSE") for one in running() if one.process.pid in everything}
    assert names == {"bash": "mine", "sleep": "mine"}
    os.kill(everything[1], signal.SIGKILL)


def test_waiting_in_vain_ends_with_what_was_waited_for() -> None:
    with pytest.raises(TestbedError, match=r"spring: not within 0\.1 s"):
        wait_until(lambda: False, 0.1, "spring")
