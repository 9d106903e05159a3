"""The agent's loop with a stand-in for srun and a real wire server. The test is its supervisor."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from wire_rig import Remembering, ServerThread

from slurm_elastic.agent import steps as steps_module
from slurm_elastic.agent.agent import Agent, AgentSetup, Verdict
from slurm_elastic.agent.steps import StepPlace, StepSpec
from slurm_elastic.machine.events import StepHeld
from slurm_elastic.slurm.api import Job
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

T = TypeVar("T")
SRUN = str(Path(__file__).parent / "bin" / "srun")
STUBBORN = "trap '' TERM USR1; echo up; while :; do sleep 0.05; done"


class Stage:
    """One agent in a thread, its supervisor's handler, and what is asked of Slurm."""

    def __init__(self, rig: ServerThread, environ: dict[str, str], tmp_path: Path) -> None:
        self.rig, self.environ = rig, environ
        self.handler = Remembering()
        self.links: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self.handler.on_connected = self.links.put
        self.verdicts: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        self.swept: list[tuple[int, tuple[str, ...]]] = []
        self.job: Job | None = None
        self.command = "true"
        self.give_up_after_s = 20.0
        self.notice: m.AgentNotice | None = None
        self.workers = 1
        self.cwd = str(tmp_path)
        self.agent: Agent | None = None

    def start(self) -> Agent:
        self.agent = Agent(
            AgentSetup(
                run_dir=self.rig.run_dir,
                role="companion",
                job_id=77,
                nodes=("n1", "n2"),
                qos="elastic",
                restart_count=0,
                heartbeat_s=0.1,
                give_up_after_s=self.give_up_after_s,
                notice=self.notice,
                lookup=lambda: self.job,
                specs_of=self.specs,
                probe_argv=lambda node: (SRUN, "--ntasks=1", f"--nodelist={node}", "sh", "-c", self.command),
                deputy=None,
                place=StepPlace(self.rig.run_dir, self.cwd, self.environ),
                sweep=lambda generation, nodes: self.swept.append((generation, nodes)),
                environ=self.environ,
            )
        )
        agent = self.agent
        threading.Thread(target=lambda: self.verdicts.put(agent.run()), daemon=True).start()
        return agent

    def specs(self, generation: int, nodes: tuple[str, ...]) -> tuple[StepSpec, ...]:
        return tuple(
            StepSpec(
                generation,
                (node,),
                (SRUN, f"--ntasks={self.workers}", f"--nodelist={node}", "sh", "-c", self.command),
            )
            for node in nodes
        )

    def order(self, message: m.Message) -> None:
        self.rig.soon(self.link.send, message)

    def connect(self) -> m.AgentHello:
        self.link = self.links.get(timeout=8)
        assert isinstance(self.link.hello, m.AgentHello)
        return self.link.hello

    def next_of(self, kind: type[T]) -> T:
        while True:
            got = self.handler.arrivals.get(timeout=30)
            if isinstance(got, kind):
                return got

    def wait_for_log(self, generation: int, node: str) -> None:
        """Until the worker runs: its output goes through the stand-in to srun's log."""
        log = self.rig.run_dir.logs / f"gen-{generation:04d}" / f"{node}.srun.log"
        deadline = time.monotonic() + 8
        while not (log.exists() and "up" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def stage(rig: ServerThread, environ: dict[str, str], tmp_path: Path) -> Iterator[Stage]:
    made = Stage(rig, environ, tmp_path)
    rig.start(made.handler)
    yield made
    if made.agent is not None and made.verdicts.empty():
        made.order(m.Release(epoch=1, reason="the test is over"))
        made.verdicts.get(timeout=20)


def test_an_agent_introduces_itself(stage: Stage) -> None:
    stage.notice = m.AgentNotice(source="slurm record", deadline=1234.0)
    stage.start()
    hello = stage.connect()
    assert (hello.job_id, hello.role, hello.nodes, hello.qos) == (77, "companion", ("n1", "n2"), "elastic")
    assert (hello.notice_source, hello.notice_deadline) == ("slurm record", 1234.0)
    assert hello.steps == ()


def test_one_srun_per_node_is_launched_and_its_end_reported(stage: Stage) -> None:
    stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1", "n2")))
    ended = {stage.next_of(m.StepEnded).node for _ in range(2)}
    assert ended == {"n1", "n2"}
    assert stage.handler.heard[0] == m.StepEnded(generation=4, node=stage.handler.heard[0].node)


def test_the_first_failing_worker_is_named_with_the_end_of_its_log(stage: Stage) -> None:
    stage.workers = 2
    log = stage.rig.run_dir.worker_log(4, "n1", 1)
    stage.command = f'[ $SLURM_LOCALID = 0 ] && {{ {STUBBORN}; }}; echo "ValueError: bad" >> {log}; exit 3'
    log.parent.mkdir(parents=True)
    stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1",)))
    ended = stage.next_of(m.StepEnded)
    assert (ended.exit_code, ended.signal) == (3, 0)
    assert ended.detail == "n1-1: ValueError: bad (see logs/gen-0004/n1-1.log)\nValueError: bad"


def test_a_step_that_cannot_be_started_is_reported(stage: Stage) -> None:
    stage.cwd = "/nowhere"
    stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1",)))
    ended = stage.next_of(m.StepEnded)
    assert ended.exit_code == 127
    assert "cannot start" in ended.detail


def test_a_repeated_launch_changes_nothing_and_a_reconnect_tells_what_runs(stage: Stage) -> None:
    stage.command = STUBBORN
    stage.start()
    stage.connect()
    launch = m.Launch(epoch=1, generation=4, nodes=("n1",))
    stage.order(launch)
    stage.wait_for_log(4, "n1")
    stage.order(launch)
    stage.rig.soon(stage.link.close, "cut by the test")
    assert stage.connect().steps == (StepHeld(generation=4, node="n1"),)
    assert (stage.rig.run_dir.logs / "gen-0004" / "n1.srun.log").read_text() == "up\n"


def test_kill_ends_stubborn_workers_of_that_and_older_generations_there(stage: Stage) -> None:
    stage.command = STUBBORN
    stage.start()
    stage.connect()
    for generation, node in ((3, "n1"), (4, "n1"), (4, "n2"), (5, "n1")):
        stage.order(m.Launch(epoch=1, generation=generation, nodes=(node,)))
        stage.wait_for_log(generation, node)
    stage.order(m.Kill(epoch=1, generation=4, nodes=("n1",), reason="drained too slowly"))
    killed = [stage.next_of(m.StepEnded) for _ in range(2)]
    assert {(ended.generation, ended.node) for ended in killed} == {(3, "n1"), (4, "n1")}
    assert {ended.signal for ended in killed} == {9}
    stage.order(m.Kill(epoch=1, generation=5, alone=True, reason="not needed any more"))
    assert stage.next_of(m.StepEnded).generation == 5
    stage.order(m.Kill(epoch=1, generation=9, reason="all"))
    assert stage.next_of(m.StepEnded).node == "n2"
    assert stage.swept == []


def test_an_srun_that_does_not_answer_is_killed_and_swept_after(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "_KILL_ROUNDS_S", (0.1, 0.1))
    stage.environ = {**stage.environ, "FAKE_SRUN_IGNORES_TERM": "1"}
    stage.command = "echo up; exec sleep 3"
    stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1",)))
    stage.wait_for_log(4, "n1")
    stage.order(m.Kill(epoch=1, generation=4))
    assert stage.next_of(m.StepEnded).signal == 9
    assert stage.swept == [(4, ("n1",))]


@pytest.mark.parametrize(("code", "final"), [(0, True), (1, True), (0, False)])
def test_a_released_agent_ends_its_steps_first(stage: Stage, code: int, final: bool) -> None:
    stage.command = STUBBORN
    stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1", "n2")))
    stage.wait_for_log(4, "n1")
    stage.wait_for_log(4, "n2")
    stage.order(m.Release(epoch=1, reason="over", final=final, exit_code=code))
    assert stage.verdicts.get(timeout=10) == Verdict(code, final)
    assert {stage.next_of(m.StepEnded).node for _ in range(2)} == {"n1", "n2"}
    stage.agent = None


def test_without_a_supervisor_the_agent_ends_its_steps_and_itself(stage: Stage) -> None:
    stage.command, stage.give_up_after_s = STUBBORN, 0.3
    agent = stage.start()
    stage.connect()
    stage.order(m.Launch(epoch=1, generation=4, nodes=("n1",)))
    stage.wait_for_log(4, "n1")
    stage.rig.stop_server()
    assert stage.verdicts.get(timeout=20) == Verdict(1, final=False)
    assert agent._steps.held() == ()
    stage.agent = None


def test_a_signal_is_told_at_once_and_again_with_the_deadline_of_slurms_record(stage: Stage) -> None:
    answer = threading.Event()
    agent = stage.start()
    stage.connect()
    now = time.time()
    job = Job(job_id=77, state="RUNNING", preempt_time=now, end_time=now + 20)
    stage.job = job

    def slow_lookup() -> Job:
        answer.wait(8)
        return job

    object.__setattr__(agent._setup, "lookup", slow_lookup)
    agent.heard("SIGUSR1")
    assert stage.next_of(m.AgentNotice) == m.AgentNotice(source="SIGUSR1")
    answer.set()
    told = stage.next_of(m.AgentNotice)
    assert told.deadline == now + 20
    assert "preempted" in told.source


def test_a_node_is_probed(stage: Stage) -> None:
    stage.start()
    stage.connect()
    stage.order(m.Probe(epoch=1, node="n1"))
    assert stage.next_of(m.ProbeAnswer) == m.ProbeAnswer(node="n1", ok=True)
    stage.command = "exit 1"
    stage.order(m.Probe(epoch=1, node="n2"))
    assert not stage.next_of(m.ProbeAnswer).ok


def test_an_allocation_that_is_not_wanted_ends(stage: Stage) -> None:
    stage.handler.verdict = m.Refused(reason="job 77 is not of this run")
    stage.start()
    assert stage.verdicts.get(timeout=8) == Verdict(0, final=False)
    stage.agent = None
