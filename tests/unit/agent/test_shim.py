"""The worker shim as a process of its own, against a real wire server."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire_rig import Remembering, ServerThread

from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

GATE = m.Gate(
    epoch=1,
    generation=3,
    global_rank=5,
    world_size=6,
    local_rank=1,
    local_world_size=2,
    node_rank=2,
    node_count=3,
    master_addr="127.0.0.1",
    master_port=4321,
    restart_count=2,
    resume="step-00000010",
    resume_step=10,
)


class GateKeeper(Remembering):
    """Tells when a worker waits at the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self.on_connected = self.waiting.put


class Shims:
    def __init__(self, rig: ServerThread, environ: dict[str, str]) -> None:
        self.rig = rig
        self.handler = GateKeeper()
        rig.start(self.handler)
        self.environ = {**environ, "SLURMD_NODENAME": "n7", "SLURM_LOCALID": "1"}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        shim = (*(sys.executable, "-P", "-m", "slurm_elastic.agent.shim"), "--run-dir", str(self.rig.run_dir.path))
        numbers = ("--generation", "3", "--job-id", "77", "--heartbeat", "0.2", "--run-id", "demo", "--cpus", "4")
        process = subprocess.Popen((*shim, *numbers, "--", *command), env=self.environ, cwd=cwd)
        self.started.append(process)
        return process

    def at_gate(self) -> Link:
        return self.handler.waiting.get(timeout=10)

    def open_gate(self) -> None:
        self.rig.soon(self.at_gate().send, GATE)

    @property
    def log(self) -> str:
        return self.rig.run_dir.worker_log(3, "n7", 1).read_text()


@pytest.fixture
def shims(rig: ServerThread, environ: dict[str, str]) -> Iterator[Shims]:
    made = Shims(rig, environ)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "folder with space" / "train.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_a_script_runs_as_python_would_run_it_with_torchruns_environment(shims: Shims, script: Any) -> None:
    path = script("""
        import json, os, sys, pickle
        class Here: pass
        pickle.dumps(Here())
        assert __name__ == "__main__" and sys.modules["__main__"].Here is Here
        print(json.dumps([sys.argv, sys.path[0], __file__, dict(os.environ)]))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
    """)
    process = shims.start("python", path, "--lr", "0.1", "-x")
    shims.open_gate()
    assert process.wait(10) == 7
    told, rest = shims.log.split("\n", 1)
    argv, folder, file, environ = json.loads(told)
    assert (argv, folder, file) == ([path, "--lr", "0.1", "-x"], str(Path(path).parent), path)
    assert rest == "to stderr\n"
    expected = {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "demo",
        "SLURM_ELASTIC_RUN_DIR": str(shims.rig.run_dir.path),
        "SLURM_ELASTIC_GENERATION": "3",
        "SLURM_ELASTIC_EPOCH": "1",
        "SLURM_ELASTIC_NODE": "n7",
        "SLURM_ELASTIC_JOB_ID": "77",
        "SLURM_ELASTIC_RESUME": "step-00000010",
        "SLURM_ELASTIC_RESUME_STEP": "10",
        "OMP_NUM_THREADS": "4",
    }
    assert {name: environ.get(name) for name in expected} == expected
    hello = shims.handler.hellos[0]
    assert isinstance(hello, m.WorkerHello)
    assert (hello.stage, hello.node, hello.local_rank, hello.pid) == ("gate", "n7", 1, process.pid)
    assert hello.address == "127.0.0.1"
    assert hello.port > 0


def test_the_port_of_the_hello_is_free_for_the_script(shims: Shims, script: Any) -> None:
    path = script("""
        import socket, sys
        socket.create_server(("127.0.0.1", int(sys.argv[1])))
    """)
    process = shims.start(
        "sh", "-c", f"exec {sys.executable} '{path}' $(cat '{shims.rig.run_dir.path}/port')", "with-port"
    )
    link = shims.at_gate()
    assert isinstance(link.hello, m.WorkerHello)
    (shims.rig.run_dir.path / "port").write_text(str(link.hello.port))
    shims.rig.soon(link.send, GATE)
    assert process.wait(10) == 0, shims.log


def test_a_module_runs_from_the_current_folder(shims: Shims, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")
    (tmp_path / "queue.py").write_text("raise SystemExit('a user file replaced the standard library')")
    process = shims.start("python3", "-m", "mine", "a", cwd=tmp_path)
    shims.open_gate()
    assert process.wait(10) == 0, shims.log
    assert shims.log == "__main__ ['a']\n"


def test_an_error_in_a_script_leaves_its_traceback_in_the_log(shims: Shims, script: Any) -> None:
    process = shims.start("python", script("raise ValueError('of the user')"))
    shims.open_gate()
    assert process.wait(10) == 1
    assert "ValueError: of the user" in shims.log


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM"])
def test_a_notice_kills_no_worker_before_or_after_the_gate(shims: Shims, script: Any, name: str) -> None:
    path = script("""
        import sys
        print("up")
        open(sys.argv[1]).read()
        print("alive")
    """)
    fifo = shims.rig.run_dir.path / "fifo"
    os.mkfifo(fifo)
    process = shims.start("python", path, str(fifo))
    link = shims.at_gate()
    process.send_signal(signal.Signals[name])
    shims.rig.soon(link.send, GATE)
    with fifo.open("w"):  # opens when the script does
        process.send_signal(signal.Signals[name])
    assert process.wait(10) == 0, shims.log
    assert shims.log.endswith("alive\n")


def heard_notice(shims: Shims) -> str:
    while not isinstance(message := shims.handler.arrivals.get(timeout=10), m.WorkerNotice):
        pass
    return message.source


def test_the_supervisor_hears_of_signals_at_the_gate_and_in_a_script_without_our_library(
    shims: Shims, script: Any
) -> None:
    path = script("import sys; open(sys.argv[1]).read()")
    fifo = shims.rig.run_dir.path / "fifo"
    os.mkfifo(fifo)
    process = shims.start("python", path, str(fifo))
    link = shims.at_gate()
    process.send_signal(signal.SIGTERM)
    assert heard_notice(shims) == "SIGTERM"
    shims.rig.soon(link.send, GATE)
    with fifo.open("w"):  # opens when the script does
        process.send_signal(signal.SIGUSR1)
        assert heard_notice(shims) == "SIGUSR1"
    assert process.wait(10) == 0, shims.log
    assert [hello.stage for hello in shims.handler.hellos if isinstance(hello, m.WorkerHello)] == ["gate", "notice"]


def test_a_handler_of_the_script_is_the_only_one_that_hears_its_signal(shims: Shims, script: Any) -> None:
    path = script("""
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: print("mine"))
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    process = shims.start("python", path)
    shims.open_gate()
    assert process.wait(10) == 0
    assert shims.log == "mine\n"
    assert len(shims.handler.hellos) == 1


def test_children_that_a_script_forks_can_still_be_terminated(shims: Shims, script: Any) -> None:
    path = script("""
        import multiprocessing, time
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(5)
        print(child.exitcode)
    """)
    process = shims.start("python", path)
    shims.open_gate()
    assert process.wait(10) == 0
    assert shims.log == "-15\n"


def test_any_other_command_is_executed_and_ignores_user_signals(shims: Shims) -> None:
    process = shims.start("sh", "-c", "kill -USR1 $$; kill -USR2 $$; echo rank $RANK; exit 4")
    shims.open_gate()
    assert process.wait(10) == 4
    assert shims.log == "rank 5\n"


def test_a_command_that_is_not_there_is_named(shims: Shims) -> None:
    process = shims.start("no-such-program")
    shims.open_gate()
    assert process.wait(10) == 127
    assert "cannot run 'no-such-program'" in shims.log


def test_a_fenced_worker_leaves_the_gate_without_success(shims: Shims, script: Any) -> None:
    process = shims.start("python", script("print('must not run')"))
    shims.rig.soon(shims.at_gate().send, m.Fenced(generation=3, reason="goes on elsewhere"))
    assert process.wait(10) == 75
    assert shims.log == "slurm-elastic: generation 3 does not start here: goes on elsewhere\n"


def test_a_worker_dies_with_its_parent(shims: Shims, script: Any) -> None:
    path = script("import time; time.sleep(60)")
    shim = [sys.executable, "-P", "-m", "slurm_elastic.agent.shim", "--run-dir", str(shims.rig.run_dir.path)]
    shim += ["--generation", "3", "--job-id", "7", "--", "python", path]
    starter = f"import subprocess; subprocess.Popen({shim!r}).wait()"
    parent = subprocess.Popen([sys.executable, "-c", starter], env=shims.environ)
    shims.started.append(parent)
    shims.at_gate()
    parent.kill()
    assert shims.handler.ends.get(timeout=5)
