"""What the demo's story is played on: a testbed, one run in it, and the waits between the acts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from slurm_elastic.errors import SlurmElasticError, TestbedError
from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.status import Status, read_status
from slurm_elastic.observe.summary import Transition, transitions
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options

NODES = 6
GRACE_S = 20
LOOK_EVERY_S = 0.3
OVER = ("finished", "stopped", "failed")


def options() -> Options:
    """Short times, so that a day of a cluster's life fits into minutes."""
    return Options(nodes=NODES, cpus=2, grace_s=GRACE_S, kill_wait_s=3, slurmd_timeout_s=12)


def settings(directory: Path, steps: int) -> dict[str, object]:
    """run.yaml of the demo's run."""
    return {
        "run": {
            "name": "demo",
            "dir": str(directory / "run"),
            "command": ["python", "-m", "slurm_elastic.demo.train"],
            "env": {
                "DEMO_STEPS": str(steps),
                "DEMO_RESULT": str(directory / "run" / "result.json"),
                "OMP_NUM_THREADS": "1",
            },
        },
        "base": {"nodes": 2, "qos": "base", "time": "1h"},
        "elastic": {
            "min_nodes": 2,
            "max_nodes": 5,
            "qos": "elastic",
            "time": "1h",
            "max_pending_companions": 1,
            "scaling_timeout": "8s",
            "scale_up_snooze_time": "5s",
        },
        "batch": {"global_batch_size": 32, "micro_batch_size": 32},
        "checkpoint": {"every": "10s", "keep": 3},
        "control": {"heartbeat": "1s", "worker_timeout": "6s", "agent_timeout": "6s", "poll": "5s"},
    }


@dataclass(frozen=True, slots=True)
class Stage:
    """`watch` is called about three times a second with the run's status while the story waits for something."""

    cluster: Cluster
    directory: Path
    watch: Callable[[Status], None]

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory / "run")

    def submit(self, steps: int) -> None:
        """Write run.yaml and submit it as a user would."""
        source = self.directory / "run.yaml"
        source.write_text(yaml.safe_dump(settings(self.directory, steps), sort_keys=False), encoding="utf-8")
        self._cli("submit", str(source))

    def occupy(self, nodes: int, qos: str = "base", name: str = "neighbour") -> list[int]:
        """Jobs of other people, one node each."""
        return [
            self.cluster.submit("-N1", "--exclusive", "-q", qos, "-J", name, "-o", "/dev/null", "--wrap", "sleep 3600")
            for _ in range(nodes)
        ]

    def free(self, jobs: list[int]) -> None:
        self.cluster.run(["scancel", *map(str, jobs)])

    def status(self) -> Status | None:
        found = read_status(self.run.status)
        if found is not None:
            self.watch(found)
        return found

    def transitions(self) -> tuple[Transition, ...]:
        return transitions(read_events(self.run.events))

    def members(self, role: str) -> tuple[str, ...]:
        """Nodes of base or companions that train now."""
        status = self.status()
        return tuple(node for job in (status.jobs if status else ()) if job.role == role for node in job.training)

    def batch_host(self) -> str:
        """The node that runs the base job's script."""
        status = self.status()
        base = [job.job_id for job in (status.jobs if status else ()) if job.role == "base"]
        return self.cluster.job(base[0]).get("BatchHost", "") if base else ""

    def wait(self, holds: Callable[[Status], bool], what: str, timeout_s: float) -> Status:
        """Return once `holds` is true of the run. Raises TestbedError with the run's state after `timeout_s`."""
        end = time.monotonic() + timeout_s
        last = None
        while time.monotonic() < end:
            last = self.status()
            if last is not None:
                if holds(last):
                    return last
                if last.state in OVER:
                    raise TestbedError(f"the run ended ({last.state}) before {what}: {last.reason}", fix=self._where())
            time.sleep(LOOK_EVERY_S)
        state = f"{last.state}: {last.reason}" if last else "no status yet"
        raise TestbedError(f"waited {timeout_s:.0f} s in vain for {what} ({state})", fix=self._where())

    def wait_steps(self, more: int, timeout_s: float = 120) -> Status:
        """Let it train for `more` steps from now."""
        status = self.status()
        goal = (status.step if status else 0) + more
        return self.wait(lambda now: now.step >= goal or now.state in OVER, f"step {goal}", timeout_s)

    def wait_transition(self, known: int, what: str, timeout_s: float) -> Transition:
        """The first transition beyond the `known` ones, once its generation trains."""
        self.wait(lambda _: len(self.transitions()) > known, what, timeout_s)
        return self.transitions()[known]

    def _cli(self, *arguments: str) -> None:
        program = Path(sys.executable).with_name("slurm-elastic")
        done = subprocess.run(
            [str(program), *arguments], env=self.cluster.env, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise SlurmElasticError(f"`slurm-elastic {arguments[0]}` failed: {done.stderr.strip()}")

    def _where(self) -> str:
        return f"see the logs in {self.run.logs}"
