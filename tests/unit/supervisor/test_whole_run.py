"""A run from start to end in one process: real supervisor, real wire, scripted agents, a Slurm in memory."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from slurm_elastic.config_model import Checkpoint, Control, Elastic, Run, RunConfig
from slurm_elastic.machine.policy import policy_of
from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import audit, read_ledger
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.api import BatchRequest, Job
from slurm_elastic.slurm.run_jobs import comment_of
from slurm_elastic.supervisor import assembly
from slurm_elastic.supervisor.assembly import Surroundings, supervise
from slurm_elastic.supervisor.journal import read, replay
from slurm_elastic.supervisor.lease import Claimant
from slurm_elastic.supervisor.records import Records
from slurm_elastic.testing.memory_slurm import MemorySlurm
from slurm_elastic.wire import messages as m
from tests.unit.supervisor.actors import Agent, Script, ledger_steps, wait_until

BASE = 1


class Supervisor(threading.Thread):
    """One life of the supervisor in a thread with a loop of its own."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(daemon=True)
        self.around = around
        self.exit_code: int | None = None
        self.start()

    def run(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(supervise(self.around))
        try:
            self.exit_code = self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            self.exit_code = -9
        finally:
            self.loop.close()

    def kill(self) -> None:
        if self.is_alive() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.task.cancel)
        self.join(5)


class Cluster:
    """A run directory, a Slurm in memory, and what runs on its nodes."""

    def __init__(
        self,
        path: Path,
        *,
        level: int = 1,
        max_nodes: int = 3,
        transition: Literal["auto", "live", "relaunch"] = "auto",
        prepare: Callable[[Script], object] = id,
        **times: float,
    ) -> None:
        """`prepare` may change the script before it starts; `times` are settings of the section control."""
        self.run = RunDirectory(path / "run")
        self.run.create()
        self.level = level
        self.config = RunConfig(
            run=Run(name="t", dir=str(self.run.path), command=("train",)),
            elastic=Elastic(
                min_nodes=1,
                max_nodes=max_nodes,
                scaling_timeout=0.0,
                scale_up_snooze_time=0.1,
                graceful_shutdown_timeout=15.0,
                max_pending_companions=1,
                transition=transition,
            ),
            checkpoint=Checkpoint(every_steps=10),
            control=Control(
                heartbeat=0.1,
                poll=15.0,
                **({"agent_timeout": 3.0, "worker_timeout": 3.0, "launch_timeout": 20.0} | times),
            ),
        )
        self.slurm = MemorySlurm(clock=time.time)
        self.slurm.known_jobs[BASE] = Job(
            job_id=BASE, state="RUNNING", user="alice", nodes=("n1", "n2"), comment=comment_of(self.run, "base")
        )
        self.script = Script(self.run)
        prepare(self.script)
        self.agents: list[Agent] = []
        self.supervisor = self.supervise()
        self.base = self.agent(BASE, "base", "n1", "n2")

    def supervise(self, restart_count: int = 0, settings_problem: str = "") -> Supervisor:
        claimant = Claimant(node="n1", pid=1, job_id=BASE, restart_count=restart_count)
        around = Surroundings(
            run=self.run,
            config=self.config,
            slurm=self.slurm,
            claimant=claimant,
            host="127.0.0.1",
            settings_problem=settings_problem,
            request_for=lambda order: BatchRequest(
                script=Path("x"), token=comment_of(self.run, order.token), options={"no-requeue": True}
            ),
        )
        return Supervisor(around)

    def agent(self, job_id: int, role: str, *nodes: str) -> Agent:
        agent = Agent(self.script, job_id, role, nodes, lambda: self.slurm.end(job_id), level=self.level)
        self.agents.append(agent)
        return agent

    def start_companion(self, *nodes: str) -> Agent:
        """The scheduler finds room for the companion that the supervisor has submitted."""
        wait_until(self._pending, "a companion is submitted")
        job_id = self._pending()[0]
        self.slurm.start(job_id, *nodes)
        return self.agent(job_id, "companion", *nodes)

    def status(self) -> dict:
        try:
            return json.loads(self.run.status.read_text())
        except FileNotFoundError:
            return {"state": "", "workers": 0, "generation": 0}

    def wait_for_world(self, workers: int) -> None:
        """Steps are made at this world size, after what was before."""
        start = ledger_steps(self.run.ledger)

        def steps() -> bool:
            lines = list(read_ledger(self.run.ledger))
            return bool(lines) and lines[-1].world == workers and (len(lines) > start + 3)

        wait_until(steps, f"steps with {workers} workers")

    def transitions(self) -> list[dict]:
        return [event.as_json() for event in read_events(self.run.events) if event.kind == "transition"]

    def _pending(self) -> list[int]:
        return [job.job_id for job in self.slurm.known_jobs.values() if job.state == "PENDING"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for agent in cluster.agents:
        agent.lose_power()
    cluster.supervisor.kill()


def test_a_run_grows_shrinks_loses_a_node_and_finishes_while_its_supervisor_is_killed(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    companion = cluster.start_companion("n3")
    cluster.wait_for_world(3)

    cluster.supervisor.kill()
    cluster.supervisor = cluster.supervise()
    cluster.wait_for_world(3)

    cluster.slurm.preempt(companion.job_id, 5.0)
    companion.notice("SIGUSR1", time.time() + 5)
    wait_until(lambda: companion.released, "the preempted companion is let go early")
    cluster.wait_for_world(2)

    second = cluster.start_companion("n4")
    cluster.wait_for_world(3)
    second.lose_power()
    cluster.wait_for_world(2)
    cluster.slurm.end(second.job_id, "NODE_FAIL")

    cluster.script.finish.set()
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert cluster.supervisor.exit_code == 0
    assert cluster.base.released is not None
    assert cluster.base.released.final
    assert cluster.run.done.exists()
    assert [job.job_id for job in cluster.slurm.known_jobs.values() if job.state in ("PENDING", "RUNNING")] == []
    assert audit(read_ledger(cluster.run.ledger)).clean
    told = cluster.transitions()
    assert [(t["transition"], t["to_workers"]) for t in told] == [
        ("start", 2),
        ("grow", 3),
        ("shrink", 2),
        ("grow", 3),
        ("replace", 2),
    ]
    assert [t["steps_lost"] for t in told[:4]] == [0, 0, 0, 0]
    assert told[4]["steps_lost"] <= 10


def test_a_worker_that_froze_before_the_supervisor_died_is_missed_by_the_next_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "REJOIN_S", 1.0)
    cluster.wait_for_world(2)
    wait_until(lambda: json.loads((cluster.run.path / "gate.json").read_text())["joined"], "all workers are there")
    cluster.supervisor.kill()
    cluster.base.workers[1, "n2"].freeze()
    cluster.supervisor = cluster.supervise()

    wait_until(lambda: cluster.status()["generation"] > 1 and cluster.status()["state"] == "training", "a restart")
    assert audit(read_ledger(cluster.run.ledger)).clean


def test_a_run_whose_checkpoints_vanish_stops_and_keeps_its_ledger(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    wait_until(lambda: cluster.status()["step"] > 20, "a checkpoint is public")
    for worker in list(cluster.base.workers.values()):
        worker.freeze()  # nobody saves any more
    there = ledger_steps(cluster.run.ledger)
    cluster.run.checkpoints.rename(cluster.run.path / "unmounted")
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert cluster.status()["state"] == "stopped"
    assert "but there is no checkpoint in" in cluster.status()["reason"]
    assert "ledger.jsonl" in cluster.status()["reason"]
    assert ledger_steps(cluster.run.ledger) >= there > 0


def test_steps_that_a_killed_supervisor_had_not_written_are_told_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Records, generation: int, steps: object) -> None:
        await asyncio.sleep(3600)

    cluster.wait_for_world(2)
    with monkeypatch.context() as patch:
        patch.setattr(Records, "add_steps", hang)
        there = ledger_steps(cluster.run.ledger)
        wait_until(lambda: cluster.status()["step"] > there + 20, "steps that are not written")
        cluster.supervisor.kill()
    cluster.supervisor = cluster.supervise()
    cluster.wait_for_world(2)

    assert audit(read_ledger(cluster.run.ledger)).clean
    assert cluster.status()["generation"] == 1


def test_a_transition_that_a_killed_supervisor_decided_and_did_not_tell_is_told_by_the_next(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    wait_until(cluster.transitions, "the start is told")
    for told_already in (False, True):
        cluster.supervisor.kill()
        if not told_already:
            cluster.run.events.unlink()
        cluster.supervisor = cluster.supervise()
        cluster.wait_for_world(2)
        assert [(t["transition"], t["generation"]) for t in cluster.transitions()] == [("start", 1)]


def test_a_fault_edited_into_the_settings_is_told_and_ends_nothing(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    cluster.supervisor.kill()
    cluster.supervisor = cluster.supervise(settings_problem="run.yaml:3: run.name is odd")
    cluster.wait_for_world(2)

    wait_until(lambda: "run.name is odd" in str(cluster.status().get("problems")), "the status says so")
    assert any("run.name is odd" in event.reason for event in read_events(cluster.run.events))


def test_the_journal_of_a_run_replays_to_its_last_state(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    cluster.start_companion("n3")
    cluster.wait_for_world(3)
    (cluster.run.requests / "1.json").write_text('{"ask": "stop"}')
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    state = replay(policy_of(cluster.config), read(cluster.run.journal))

    assert state.phase == "stopped"
    assert not cluster.run.done.exists()
    assert cluster.supervisor.exit_code == 0


def test_a_supervisor_that_was_overtaken_stops_and_writes_nothing(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    ghost = cluster.supervisor
    cluster.supervisor = cluster.supervise()
    wait_until(lambda: ghost.exit_code is not None, "the older one stops")

    assert ghost.exit_code == 4
    cluster.wait_for_world(2)
    assert len(cluster.transitions()) == 1


def test_a_silent_controller_stops_nothing(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    cluster.slurm.silent = "Unable to contact slurm controller"
    cluster.agents[0].channel.send(m.StepEnded(generation=0, node="n9", exit_code=1))  # makes the supervisor ask
    wait_until(lambda: cluster.status().get("problems"), "the status says so")
    cluster.slurm.silent = ""

    assert cluster.status()["generation"] == 1


def test_a_base_job_that_is_preempted_is_requeued_before_it_ends(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    preempted = replace(cluster.slurm.known_jobs[BASE], preempt_time=time.time(), requeue=True)
    cluster.slurm.known_jobs[BASE] = preempted
    cluster.agents[0].channel.send(m.AgentNotice(source="SIGUSR1", deadline=time.time() + 60))
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert cluster.slurm.known_jobs[BASE].restarts == 1
    assert [event.kind for event in read_events(cluster.run.events)][-2:] == ["stopped", "requeued"]


def test_a_base_job_that_was_cancelled_stays_away(cluster: Cluster) -> None:
    cluster.wait_for_world(2)
    cluster.agents[0].channel.send(m.AgentNotice(source="SIGTERM"))
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert cluster.slurm.known_jobs[BASE].restarts == 0
    assert cluster.status()["state"] == "stopped"


def test_an_unmodified_script_is_ended_and_started_again_at_the_new_size(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, level=0)
    wait_until(lambda: cluster.status()["workers"] == 2, "two workers")
    (cluster.run.requests / "1.json").write_text('{"ask": "scale", "nodes": 1}')
    wait_until(lambda: cluster.status()["workers"] == 1, "one worker")

    cluster.script.finish.set()
    wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert cluster.run.done.exists()
    for agent in cluster.agents:
        agent.lose_power()
