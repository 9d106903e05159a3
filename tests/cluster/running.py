"""A run on a testbed, as a test sees it: submitted by the command line, watched through its files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import Audit, LedgerLine, audit, read_ledger
from slurm_elastic.observe.status import Status, read_status
from slurm_elastic.observe.summary import Transition, transitions
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.testbed.cluster import Cluster

SCRIPT = Path(__file__).with_name("train_small.py")


@dataclass(slots=True)
class Running:
    """`settings` changes sections of the usual run.yaml: {"elastic": {"max_nodes": 4}}."""

    cluster: Cluster
    run: RunDirectory
    job_id: int = 0

    @classmethod
    def submit(cls, cluster: Cluster, folder: Path, steps: int = 100_000, **settings: dict[str, object]) -> Running:
        running = cls(cluster, RunDirectory(folder / "run"))
        source = folder / "run.yaml"
        source.write_text(yaml.safe_dump(_settings(running.run, steps, settings)))
        running.command("submit", str(source))
        running.wait(lambda status: any(job.role == "base" for job in status.jobs), "the base job joins", 60)
        running.job_id = next(job.job_id for job in running.status().jobs if job.role == "base")
        return running

    def command(self, *words: str) -> str:
        """`slurm-elastic WORDS`, which must succeed."""
        argv = [sys.executable, "-m", "slurm_elastic.cli.main", *words]
        done = subprocess.run(argv, env=self.cluster.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> Status:
        found = read_status(self.run.status)
        assert found is not None
        return found

    def wait(self, holds: Callable[[Status], bool], what: str, timeout_s: float = 90.0) -> Status:
        """Bounded; a failure shows how the run is."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = read_status(self.run.status)
            if found is not None and holds(found):
                return found
            assert time.monotonic() < deadline, f"timed out: {what}\n{self.story()}"
            time.sleep(0.2)

    def wait_for_world(self, workers: int, timeout_s: float = 90.0) -> None:
        """New steps are made by so many workers, and the transition to them has been told."""

        def stepping(status: Status) -> bool:
            last, told = self.last_line(), status.last_transition
            is_told = told is not None and told.generation == status.generation
            return status.workers == workers and is_told and last is not None and last.world == workers

        self.wait(stepping, f"steps with {workers} workers", timeout_s)

    def wait_for_end(self, timeout_s: float = 90.0) -> None:
        """Nothing of the run is left in Slurm."""
        deadline = time.monotonic() + timeout_s
        while jobs := [job for job in self.cluster.queue() if job.split()[2].startswith("run")]:
            assert time.monotonic() < deadline, f"still there: {jobs}\n{self.story()}"
            time.sleep(0.3)

    def last_line(self) -> LedgerLine | None:
        lines = list(read_ledger(self.run.ledger))
        return lines[-1] if lines else None

    def audit(self) -> Audit:
        return audit(read_ledger(self.run.ledger))

    def transitions(self) -> tuple[Transition, ...]:
        return transitions(read_events(self.run.events))

    def companion(self) -> tuple[int, str]:
        """Job id and node of a companion that trains."""
        job = next(job for job in self.status().jobs if job.role == "companion" and job.training)
        return job.job_id, job.training[0]

    def story(self) -> str:
        """What happened, for the message of a failing test."""
        lines = [str(event.as_json()) for event in read_events(self.run.events) if event.kind != "checkpoint"]
        log = self.run.logs / "supervisor.log"
        tail = log.read_text().splitlines()[-15:] if log.exists() else []
        return "\n".join([*lines[-20:], *tail])


def _settings(run: RunDirectory, steps: int, changes: dict[str, dict[str, object]]) -> dict[str, object]:
    settings: dict[str, dict[str, object]] = {
        "run": {
            "name": "run",
            "dir": str(run.path),
            "command": ["python", str(SCRIPT)],
            "env": {"STEPS": str(steps), "BUSY": str(run.path.parent), "OMP_NUM_THREADS": "1"},
        },
        "base": {"nodes": 2, "qos": "base", "time": "1h"},
        "elastic": {
            "min_nodes": 2,
            "max_nodes": 3,
            "qos": "elastic",
            "time": "1h",
            "max_pending_companions": 1,
            "scaling_timeout": "5s",
            "scale_up_snooze_time": "5s",
            "graceful_shutdown_timeout": "20s",
        },
        "batch": {"global_batch_size": 24, "micro_batch_size": 24},
        "checkpoint": {"every": "3s"},
        "control": {"heartbeat": "1s", "worker_timeout": "10s", "agent_timeout": "10s", "poll": "5s"},
    }
    for section, values in changes.items():
        settings[section] = settings.get(section, {}) | values
    return dict(settings)
