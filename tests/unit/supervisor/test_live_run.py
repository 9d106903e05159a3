"""Live transitions from start to end in one process: real supervisor, real wire, scripted workers that stay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_elastic.machine.policy import policy_of
from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import audit, read_ledger
from slurm_elastic.supervisor.journal import read, replay
from tests.unit.supervisor.actors import wait_until
from tests.unit.supervisor.live_actors import MOVED_BYTES, LiveWorker, Net, live_script
from tests.unit.supervisor.test_whole_run import Cluster


@dataclass
class Live:
    cluster: Cluster
    net: Net

    def worker(self, launch: int, node: str) -> LiveWorker:
        """That worker, once it is there."""

        (worker,) = (agent.workers[launch, node] for agent in self.cluster.agents if (launch, node) in agent.workers)
        assert isinstance(worker, LiveWorker)
        return worker

    def scale(self, nodes: int) -> None:
        path = self.cluster.run.requests / f"{time.time_ns()}.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"ask": "scale", "nodes": nodes}))
        draft.rename(path)

    def finish(self) -> None:
        """All of it is in the ledger once, and the journal tells the same story."""
        cluster = self.cluster
        cluster.script.finish.set()
        wait_until(lambda: cluster.supervisor.exit_code is not None, "the supervisor ends")
        assert cluster.supervisor.exit_code == 0
        assert cluster.run.done.exists()
        assert audit(read_ledger(cluster.run.ledger)).clean
        assert replay(policy_of(cluster.config), read(cluster.run.journal)).phase == "finished"

    def changes(self) -> list[tuple[str, str, int]]:
        return [(t["transition"], t["mode"], t["to_workers"]) for t in self.cluster.transitions()]

    def events(self, kind: str) -> list[dict]:
        return [event.as_json() for event in read_events(self.cluster.run.events) if event.kind == kind]

    def wait_for_change(self, kind: str, workers: int, mode: str = "live") -> None:
        wait_until(lambda: self.changes()[-1:] == [(kind, mode, workers)], f"{kind} to {workers}, {mode}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    made: list[Live] = []

    def begin(workers: int = 2, **times: float) -> Live:
        net = Net()
        live = Live(Cluster(tmp_path, level=2, prepare=lambda script: live_script(script, net), **times), net)
        cluster = live.cluster
        made.append(live)
        cluster.wait_for_world(workers)
        wait_until(lambda: cluster.status().get("mode") == "live", "all workers said that they can regroup")
        return live

    yield begin
    for live in made:
        live.net.hold.clear()
        for agent in live.cluster.agents:
            agent.lose_power()
        live.cluster.supervisor.kill()


def test_workers_stay_through_growth_notice_and_loss(start: Callable[..., Live]) -> None:
    live = start()
    cluster = live.cluster
    companion = cluster.start_companion("n3")
    live.wait_for_change("grow", 3)
    companion.notice("SIGUSR1", time.time() + 20)
    cluster.slurm.preempt(companion.job_id, 20.0)
    wait_until(lambda: companion.released, "the companion is let go early")
    live.wait_for_change("shrink", 2)
    second = cluster.start_companion("n4")
    live.wait_for_change("grow", 3)
    second.lose_power()
    cluster.slurm.end(second.job_id, "NODE_FAIL")
    live.wait_for_change("replace", 2)
    cluster.wait_for_world(2)

    assert sorted(cluster.base.workers) == [(1, "n1"), (1, "n2")]
    told = cluster.transitions()
    assert [t["steps_lost"] for t in told] == [0, 0, 0, 0, 0]
    assert [t["moved_bytes"] for t in told[1:]] == [3 * MOVED_BYTES, 2 * MOVED_BYTES, 3 * MOVED_BYTES, 2 * MOVED_BYTES]
    assert {line.generation for line in read_ledger(cluster.run.ledger)} == {t["generation"] for t in told}
    live.finish()


def test_a_crash_is_known_by_its_closed_connection_before_anybody_reports_it(start: Callable[..., Live]) -> None:
    live = start(worker_timeout=60.0, agent_timeout=60.0)
    live.worker(1, "n2").crash(unheard=True)
    live.wait_for_change("replace", 1)

    assert [e["node"] for e in live.events("worker_lost")] == ["n2"]
    assert live.cluster.transitions()[-1]["stall_s"] < 10
    live.finish()


def test_a_worker_that_fails_is_fenced_alone_and_comes_back_as_a_growth(start: Callable[..., Live]) -> None:
    live = start()
    live.worker(1, "n2").crash()
    wait_until(lambda: ("replace", "live", 1) in live.changes(), "the other goes on")
    live.wait_for_change("grow", 2)

    assert live.worker(1, "n1").is_alive()
    assert [seat for seat in live.cluster.base.workers if seat[1] == "n1"] == [(1, "n1")]
    live.finish()


def test_a_frozen_worker_is_missed_and_those_who_wait_for_it_are_called_away(start: Callable[..., Live]) -> None:
    live = start(worker_timeout=1.0)
    live.worker(1, "n2").freeze()
    wait_until(lambda: ("replace", "live", 1) in live.changes(), "the other goes on")

    assert (1, "n1") in live.cluster.base.workers
    live.finish()


def test_a_loss_during_a_regroup(start: Callable[..., Live]) -> None:
    live = start()
    live.cluster.start_companion("n3")
    live.wait_for_change("grow", 3)
    live.net.hold.set()
    live.scale(2)
    wait_until(lambda: len(live.events("regrouping")) == 2, "the shrink is ordered")
    live.worker(1, "n2").crash()
    wait_until(lambda: len(live.events("regrouping")) == 3, "the next one is ordered")
    live.net.hold.clear()
    wait_until(lambda: live.changes()[-1][1:] == ("live", 1) or live.changes()[-1][1:] == ("live", 2), "it is done")

    assert (1, "n1") in live.cluster.base.workers
    assert live.changes()[-1][0] in ("replace", "grow")
    live.finish()


@pytest.mark.parametrize("told", [True, False])
def test_a_supervisor_that_is_killed_during_a_regroup(
    start: Callable[..., Live], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    cluster = live.cluster
    live.net.hold.set()
    with monkeypatch.context() as patch:
        if not told:  # it dies between the journal and the plan
            patch.setattr("slurm_elastic.supervisor.regroups.Regroups.order", lambda self, order: None)
        live.scale(1)
        wait_until(lambda: live.events("regrouping"), "the shrink is ordered")
        if told:
            wait_until(lambda: (cluster.run.path / "regroup.json").exists(), "the plan is written")
        cluster.supervisor.kill()
    cluster.supervisor = cluster.supervise()
    wait_until(lambda: cluster.status()["supervisor"]["epoch"] == 2, "the next one is there")
    live.net.hold.clear()
    live.wait_for_change("shrink", 1)

    assert (1, "n1") in cluster.base.workers
    live.finish()


def test_a_supervisor_that_is_killed_after_a_regroup_takes_the_workers_back(start: Callable[..., Live]) -> None:
    live = start()
    cluster = live.cluster
    cluster.start_companion("n3")
    live.wait_for_change("grow", 3)
    cluster.supervisor.kill()
    cluster.supervisor = cluster.supervise()
    cluster.wait_for_world(3)

    wait_until(lambda: cluster.status()["supervisor"]["epoch"] == 2, "its status")
    assert cluster.status()["generation"] == cluster.transitions()[-1]["generation"]
    assert len(cluster.transitions()) == 2
    live.finish()


def test_steps_that_died_with_rank_0_are_told_by_its_successor(start: Callable[..., Live]) -> None:
    live = start()
    first = live.worker(1, "n1")
    first.mute.set()
    told = max(line.step for line in read_ledger(live.cluster.run.ledger))
    wait_until(lambda: first.step > told + 8, "steps that nobody hears of")
    first.crash()
    wait_until(lambda: ("replace", "live", 1) in live.changes(), "the other goes on")
    lost = next(t for t in live.cluster.transitions() if t["transition"] == "replace")

    assert lost["steps_lost"] == 0
    live.finish()
    lines = {line.step: line for line in read_ledger(live.cluster.run.ledger)}
    assert {lines[step].generation for step in range(told + 3, told + 9)} == {1}


def test_workers_that_never_regroup_are_started_anew(start: Callable[..., Live]) -> None:
    live = start(launch_timeout=2.0)
    live.net.hold.set()
    live.scale(1)
    wait_until(lambda: live.events("regrouping"), "the shrink is ordered")
    wait_until(lambda: live.changes()[-1][1:] == ("relaunch", 1), "a new start")

    assert all(launch > 1 for launch, _ in live.cluster.base.workers)


def test_a_save_of_before_a_stop_counts_in_a_live_generation(start: Callable[..., Live]) -> None:
    live = start()
    live.scale(1)
    live.wait_for_change("shrink", 1)
    (live.cluster.run.requests / "9.json").write_text('{"ask": "stop"}')
    wait_until(lambda: live.cluster.supervisor.exit_code is not None, "the supervisor ends")

    assert replay(policy_of(live.cluster.config), read(live.cluster.run.journal)).phase == "stopped"


def test_a_script_that_cannot_is_told_when_the_user_wants_live(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, transition="live")
    try:
        wait_until(lambda: any("run.build" in p["problem"] for p in cluster.status().get("problems", ())), "a warning")
        assert cluster.status()["mode"] == "relaunch"
    finally:
        for agent in cluster.agents:
            agent.lose_power()
        cluster.supervisor.kill()
