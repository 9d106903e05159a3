"""The two that are compared, driven through the same events: slurm-elastic on a testbed, and torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import yaml

from benchmarks.stall_steps import GLOBAL_BATCH, SAVE_EVERY, STEP_LOG
from slurm_elastic.observe.status import read_status
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.testbed.cluster import Cluster

ROOT = Path(__file__).parents[1]
END_S = 60.0
# What torchrun needs to be quick, and to work at all after a shrink.
RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
TORCHRUN_ENV = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Contender(Protocol):
    """`steps` is its log of completed steps. It starts with two workers; each event is caused, not waited for."""

    @property
    def name(self) -> str: ...

    @property
    def steps(self) -> Path: ...

    def start(self) -> None: ...

    def grow(self) -> None:
        """To three workers."""
        ...

    def lose(self) -> None:
        """SIGKILL for the third worker."""
        ...

    def shrink(self) -> None:
        """The third worker's place is wanted back, and that is said before."""
        ...

    def stop(self) -> None:
        """Nothing of it runs any more. Safe to repeat."""
        ...


@dataclass(slots=True)
class SlurmElastic:
    """One run on a testbed of three nodes, whose third is taken by somebody else at first. `name`: how it changes."""

    cluster: Cluster
    folder: Path
    name: str
    neighbour: int = 0
    started: bool = False

    @property
    def steps(self) -> Path:
        return self.folder / "steps.log"

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.folder / "run")

    def start(self) -> None:
        self.neighbour = self._job_of_somebody("base")
        self.cluster.wait_job(self.neighbour, "RUNNING")
        source = self.folder / "run.yaml"
        source.write_text(yaml.safe_dump(self._settings()))
        self._command("submit", str(source))
        self.started = True

    def grow(self) -> None:
        self.cluster.tell("scancel", str(self.neighbour))

    def lose(self) -> None:
        self.cluster.kill_worker(self._companion())

    def shrink(self) -> None:
        self._job_of_somebody("urgent")

    def stop(self) -> None:
        if self.started:
            self.started = False
            self._command("stop", str(self.run.path))
            wait(lambda: not any("stall" in line for line in self.cluster.queue()), END_S, "the run ends")
        self.cluster.restore()

    def _companion(self) -> str:
        """The node of the companion that trains."""
        status = read_status(self.run.status)
        assert status is not None
        return next(job.training[0] for job in status.jobs if job.role == "companion" and job.training)

    def _job_of_somebody(self, qos: str) -> int:
        return self.cluster.submit("-N1", "--exclusive", "-q", qos, "-o", "/dev/null", "--wrap", "sleep 3600")

    def _command(self, *words: str) -> None:
        argv = [sys.executable, "-m", "slurm_elastic.cli.main", *words]
        subprocess.run(argv, env=self.cluster.env, check=True, capture_output=True, timeout=END_S)

    def _settings(self) -> dict[str, object]:
        return {
            "run": {
                "name": "stall",
                "dir": str(self.run.path),
                "workdir": str(ROOT),
                "command": ["python", "-m", f"benchmarks.stall_train_{self.name}"],
                "env": {"OMP_NUM_THREADS": "1", STEP_LOG: str(self.steps)},
            },
            "base": {"nodes": 2, "qos": "base", "time": "1h"},
            "elastic": {
                "min_nodes": 2,
                "max_nodes": 3,
                "qos": "elastic",
                "time": "1h",
                "max_pending_companions": 1,
                "scaling_timeout": "3s",
                "scale_up_snooze_time": "3s",
            },
            "batch": {"global_batch_size": GLOBAL_BATCH, "micro_batch_size": GLOBAL_BATCH},
            "checkpoint": {"every_steps": SAVE_EVERY},
            "control": {"poll": "5s"},
        }


@dataclass(slots=True)
class Torchrun:
    """Three agents at most, all on this machine. The first one has the rendezvous' store and is never touched."""

    folder: Path
    name: str = "torchrun"
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def steps(self) -> Path:
        return self.folder / "steps.log"

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._agent()
        self._agent()

    def grow(self) -> None:
        self._agent()

    def lose(self) -> None:
        agent = self.agents[-1].pid
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        worker = next(pid for pid in map(int, children) if b"stall_train_torchrun" in _arguments(pid))
        os.kill(worker, signal.SIGKILL)

    def shrink(self) -> None:
        self.agents[-1].terminate()

    def stop(self) -> None:
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
                agent.kill()
                agent.wait()
        self.agents.clear()

    def _agent(self) -> None:
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2:3", "--nproc-per-node=1"]
        argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=stall"]
        argv += [f"--rdzv-conf={RENDEZVOUS}", "--monitor-interval=0.05", "--max-restarts=100"]
        argv += ["--local-addr=127.0.0.1", "-m", "benchmarks.stall_train_torchrun"]
        places = {STEP_LOG: str(self.steps), "BENCHMARK_CHECKPOINTS": str(self.folder)}
        with (self.folder / f"agent-{len(self.agents)}.log").open("wb") as log:
            environ = {**os.environ, **TORCHRUN_ENV, **places}
            self.agents.append(subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=log, stderr=log))


def wait(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)


def _arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
