"""The keeper with real processes: what it starts again, what it passes on, and how it ends."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from wire_rig import Remembering, ServerThread

from slurm_elastic.agent import keeper as keeper_module
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

KEEPER = """
import sys
from slurm_elastic.agent.keeper import Child, Keeper, _prepare_agent, _prepare_deaf
agent = Child("agent", (sys.executable, "-S", sys.argv[1]), _prepare_agent)
supervisor = Child("supervisor", (sys.executable, "-S", sys.argv[2]), _prepare_deaf)
sys.exit(Keeper(agent, supervisor=supervisor).run())
"""
LISTEN = """
import os, signal, sys
def say(text):
    with open({told!r}, "a") as out:
        out.write(text + "\\n")
def verdict(text):
    os.write(int(sys.argv[sys.argv.index("--report-fd") + 1]), text)
    sys.exit(0)
"""


class Keeping:
    """A keeper whose children are small scripts that write into a pipe what happens to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._fifo = folder / "told"
        os.mkfifo(self._fifo)
        self._reader = os.open(self._fifo, os.O_RDWR)
        threading.Thread(target=self._read, daemon=True).start()
        self.process: subprocess.Popen[bytes] | None = None

    def _read(self) -> None:
        with os.fdopen(self._reader) as lines:
            for line in lines:
                if line == "end\n":
                    return
                self.told.put(line.strip())

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(LISTEN.format(told=str(self._fifo)) + textwrap.dedent(text))
        return str(path)

    def start(self, agent: str, supervisor: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        scripts = (self.script("agent.py", agent), self.script("supervisor.py", supervisor))
        self.process = subprocess.Popen((sys.executable, "-c", KEEPER, *scripts), stderr=output)
        return self.process

    def hear(self) -> str:
        return self.told.get(timeout=8)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        with self._fifo.open("w") as out:
            out.write("end\n")


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    made = Keeping(tmp_path)
    yield made
    made.close()


IDLE = "signal.pause()"
SAY_PID = "say(f'supervisor {os.getpid()}'); signal.pause()"


def test_a_finished_run_is_never_started_again(tmp_path: Path) -> None:
    (tmp_path / "DONE").write_text("{}")
    for role in ("base", "companion", "single"):
        keeper = (sys.executable, "-m", "slurm_elastic.agent.keeper", "--run-dir", str(tmp_path), "--role", role)
        done = subprocess.run(keeper, capture_output=True, text=True, timeout=10, check=False)
        assert (done.returncode, "is done; nothing to do" in done.stdout) == (0, True)


@pytest.mark.parametrize("code", [0, 3])
def test_the_jobs_exit_code_is_what_the_released_agent_said(keeping: Keeping, code: int) -> None:
    agent = f"""verdict(b'{{"exit_code": {code}, "final": false}}')"""
    assert keeping.start(agent, IDLE).wait(8) == code


def test_notices_reach_the_agent_only_even_one_that_comes_before_it_listens(keeping: Keeping) -> None:
    agent = """
        say(f"agent {os.getpid()}")
        open(os.path.dirname(sys.argv[0]) + "/go").read()
        for _ in range(2):
            say(signal.Signals(signal.sigwait({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})).name)
        verdict(b'{"exit_code": 0, "final": false}')
    """
    os.mkfifo(keeping.folder / "go")
    keeper = keeping.start(agent, SAY_PID)
    assert {keeping.hear().split()[0], keeping.hear().split()[0]} == {"agent", "supervisor"}
    keeper.send_signal(signal.SIGUSR1)
    time.sleep(0.1)  # the keeper has passed it on: the agent does not listen yet
    with (keeping.folder / "go").open("w"):
        pass
    assert keeping.hear() == "SIGUSR1"
    keeper.send_signal(signal.SIGTERM)
    assert keeping.hear() == "SIGTERM"
    assert keeper.wait(8) == 0


def test_a_killed_agent_and_a_killed_supervisor_are_started_again(keeping: Keeping) -> None:
    agent = """
        if "--again" in sys.argv:
            say("agent again")
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    keeping.start(agent, SAY_PID)
    told = sorted((keeping.hear(), keeping.hear()))
    assert told[0] == "agent again"
    first = int(told[1].split()[1])
    os.kill(first, signal.SIGKILL)
    assert int(keeping.hear().split()[1]) != first


def test_children_die_with_the_keeper(keeping: Keeping) -> None:
    keeper = keeping.start(IDLE, SAY_PID)
    supervisor = int(keeping.hear().split()[1])
    keeper.kill()
    keeper.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{supervisor}/stat").exists() and b") Z" not in Path(f"/proc/{supervisor}/stat").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_users_mistake_is_not_tried_again(keeping: Keeping) -> None:
    assert keeping.start(IDLE, "sys.exit(2)").wait(8) == 2


def test_a_full_disk_under_the_jobs_output_ends_nothing(keeping: Keeping) -> None:
    with Path("/dev/full").open("wb") as full:
        keeping.start(IDLE, "say('supervisor'); sys.exit(1)", output=full)
        assert [keeping.hear(), keeping.hear()] == ["supervisor", "supervisor"]


def test_a_child_that_cannot_be_started_for_long_ends_the_job_and_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeper_module, "_HOPELESS_S", 0.3)
    monkeypatch.setattr(keeper_module, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, signals: None)
    absent = keeper_module.Child("agent", (str(tmp_path / "gone"),), lambda: None)

    assert keeper_module.Keeper(absent).run() == 1
    said = capfd.readouterr().err
    assert "cannot be started: No such file" in said
    assert "whether its directory can be written" in said


@pytest.mark.parametrize(("setting", "code"), [("missing", 1), ("fault", 2)])
def test_a_file_system_that_fails_may_come_back_and_a_mistake_does_not(tmp_path: Path, setting: str, code: int) -> None:
    run = RunDirectory(tmp_path / "run")
    if setting == "fault":
        run.create()
        run.config.write_text("run: {name: [}")
    for part in ("supervisor", "agent"):
        role = ("--role", "base") if part == "agent" else ()
        done = subprocess.run(
            (sys.executable, "-m", f"slurm_elastic.{part}", "--run-dir", str(run.path), *role),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == code, done.stderr


def test_a_whole_companion_lives_and_is_released(rig: ServerThread, environ: dict[str, str], tmp_path: Path) -> None:
    rig.run_dir.config.write_text(
        "run: {name: demo, dir: " + str(rig.run_dir.path) + ", command: [sh, -c, 'echo rank $RANK; sleep 60']}\n"
        "base: {workers_per_node: 2}\ncontrol: {heartbeat: 0.2s}\nelastic: {max_nodes: 2}\n"
        "checkpoint: {every_steps: 10}\n"
    )
    handler = Remembering()
    links: queue.SimpleQueue[Link] = queue.SimpleQueue()
    handler.on_connected = links.put
    rig.start(handler)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_ON_NODE": "4", "SLURMD_NODENAME": "n1"}
    keeper = (sys.executable, "-m", "slurm_elastic.agent.keeper", "--run-dir", str(rig.run_dir.path))
    process = subprocess.Popen((*keeper, "--role", "companion"), env={**environ, **slurm}, cwd=tmp_path)
    try:
        agent = links.get(timeout=10)
        assert isinstance(agent.hello, m.AgentHello)
        assert agent.hello.nodes == ("n1", "n2")
        rig.soon(agent.send, m.Launch(epoch=1, generation=1, nodes=("n2",)))
        for _ in range(2):
            worker = links.get(timeout=10)
            assert isinstance(worker.hello, m.WorkerHello)
            rig.soon(worker.send, gate(worker.hello.local_rank))
        log = rig.run_dir.worker_log(1, "n2", 1)
        deadline = time.monotonic() + 8
        while not (log.exists() and log.read_text() == "rank 1\n"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        while handler.arrivals.get(timeout=8) != m.AgentNotice(source="SIGUSR1"):
            pass
        rig.soon(agent.send, m.Release(epoch=1, reason="over", final=True))
        assert process.wait(15) == 0
        assert [said.signal for said in handler.heard if isinstance(said, m.StepEnded)] == [9]
    finally:
        process.kill()
        process.wait()


def gate(local_rank: int) -> m.Gate:
    return m.Gate(
        epoch=1,
        generation=1,
        global_rank=local_rank,
        world_size=2,
        local_rank=local_rank,
        local_world_size=2,
        node_rank=0,
        node_count=1,
        master_addr="127.0.0.1",
        master_port=1,
        restart_count=0,
    )


@pytest.mark.parametrize("code", [2, 4])
def test_a_supervisor_that_must_not_be_started_again_ends_the_job(keeping: Keeping, code: int) -> None:
    assert keeping.start(IDLE, f"sys.exit({code})").wait(8) == code
