"""A run directory as a running supervisor leaves it, and a stand-in for the part that takes requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_elastic.observe.status import JobStatus, Status, SupervisorStatus, TransitionStatus, write_status
from slurm_elastic.rundir import RunDirectory


def make_run(path: Path, **changes: Any) -> RunDirectory:
    """`changes` go into status.json; `status=None` leaves it out; `age_s`: since when the supervisor is silent."""
    run = RunDirectory(path)
    run.create()
    run.config.write_text("run: {}\n")
    if changes.get("status", "written") is not None:
        write_run_status(run, **changes)
    return run


def write_run_status(run: RunDirectory, *, age_s: float = 0.0, **changes: Any) -> None:
    now = time.time()
    jobs = (
        JobStatus(job_id=41, role="base", qos="high", status="joined", nodes=("n1", "n2"), training=("n1", "n2")),
        JobStatus(
            job_id=42, role="companion", qos="low", status="leaving", nodes=("n7",), training=("n7",),
            notice="SIGUSR1", notice_deadline=now + 30,
        ),
    )  # fmt: skip
    shrink = TransitionStatus(
        time=now - 60, kind="shrink", mode="relaunch", reason="job 40 preempted [by QOS]", generation=3,
        from_workers=4, to_workers=3, stall_s=1.5, steps_lost=0, planned=True,
    )  # fmt: skip
    values: dict[str, Any] = {
        "run": "gpt", "run_dir": str(run.path), "state": "training", "reason": "3 nodes train", "generation": 3,
        "standby": None, "nodes": 3, "workers": 3, "wanted_nodes": 5, "min_nodes": 2, "max_nodes": 5, "jobs": jobs,
        "pending_companions": 1, "step": 120, "total_steps": 500, "steps_per_s": 4.0, "epoch_of_data": 0.5,
        "loss": 2.5, "lr": 0.1, "checkpoint": None, "last_transition": shrink, "problems": (),
        "supervisor": SupervisorStatus(epoch=2, host="n1", pid=7, time=now - age_s, started_at=now - 100),
    }  # fmt: skip
    write_status(run.status, Status(**(values | changes)))


@contextmanager
def requests_taken(run: RunDirectory, **changes: Any) -> Iterator[list[dict[str, Any]]]:
    """Takes requests as the supervisor does, for as long as the context lasts; then `changes` are its status."""
    taken: list[dict[str, Any]] = []
    over = threading.Event()

    def take() -> None:
        while not over.wait(0.01):
            for path in run.requests.glob("*.json"):
                taken.append(json.loads(path.read_text()))
                path.unlink()
                if changes:
                    write_run_status(run, **changes)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
