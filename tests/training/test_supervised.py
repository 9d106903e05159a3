"""Workers and their supervisor: orders come in over the wire, reports go out, and a fenced worker is silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.checkpoint.publish import newest
from slurm_elastic.training.control import FENCED_EXIT
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.link import Link
from tests.training.supervising import RUN_YAML, ScriptedSupervisor, publishing
from tests.training.trainings import Plot, train
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

React = Callable[[ScriptedSupervisor, Link, m.AnyMessage], None]
Start = Callable[[React], ScriptedSupervisor]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Start]:
    started: list[ScriptedSupervisor] = []

    def start(react: React) -> ScriptedSupervisor:
        started.append(ScriptedSupervisor(tmp_path / "run", react))
        return started[-1]

    yield start
    for supervisor in started:
        supervisor.close()


def run_world(supervisor: ScriptedSupervisor, size: int, plot: Plot, generation: int, resume: str = "") -> list[int]:
    log = supervisor.run.path / "log"
    environment = supervisor.environment(generation, resume)
    codes = WorldOfProcesses(size, train, supervisor.run.path, plot, log=log, extra=environment).wait()
    print(log.read_text())
    return codes


def draining(at: type[m.Message], deadline: float | None = None) -> React:
    """Tells rank 1, and nobody else, at the first message of this kind."""

    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        publishing(supervisor, link, message)
        if isinstance(message, at) and len(supervisor.said(at)) == 1:
            drain = m.Drain(epoch=1, generation=1, reason="notice", deadline=deadline)
            supervisor.links[1].send(drain)

    return react


def test_one_rank_is_told_and_all_stop_after_the_same_step_with_a_public_checkpoint(supervised: Start) -> None:
    supervisor = supervised(draining(m.Steps))

    codes = run_world(supervisor, 3, Plot(slow_s=0.02), generation=1)

    assert codes == [0, 0, 0]
    leaving = [message for _, message in supervisor.said(m.Leaving)]
    assert len(leaving) == 3
    assert {(message.why, message.step) for message in leaving} == {("drained", leaving[0].step)}
    found = newest(supervisor.run.checkpoints).checkpoint
    assert found is not None and found.step == leaving[0].step < 16
    assert not supervisor.run.ledger.exists()  # the supervisor's, under a supervisor


def test_a_signal_to_a_worker_is_told_to_the_supervisor_and_stops_nothing(supervised: Start) -> None:
    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        publishing(supervisor, link, message)
        if isinstance(message, m.Steps) and len(supervisor.said(m.Steps)) == 1:
            assert isinstance(link.hello, m.WorkerHello)
            os.kill(link.hello.pid, signal.SIGTERM)

    supervisor = supervised(react)

    codes = run_world(supervisor, 2, Plot(slow_s=0.02), generation=1)

    assert codes == [0, 0]
    assert [message.source for _, message in supervisor.said(m.WorkerNotice)] == ["SIGTERM"]
    assert [message.why for _, message in supervisor.said(m.Leaving)] == ["finished", "finished"]


def test_steps_are_reported_in_order_before_what_follows_from_them(supervised: Start) -> None:
    supervisor = supervised(publishing)

    codes = run_world(supervisor, 2, Plot(), generation=1)

    assert codes == [0, 0]
    reported = 0
    for rank, message in supervisor.heard:
        if isinstance(message, m.Steps):
            assert rank == 0 and message.total_steps == 16
            assert [done.step for done in message.steps] == list(range(reported + 1, message.steps[-1].step + 1))
            reported = message.steps[-1].step
        if isinstance(message, m.Saved):
            assert reported >= message.step
        if isinstance(message, m.Leaving):
            assert (message.why, message.step) == ("finished", 16)
    assert reported == 16


def test_a_fenced_worker_exits_at_once_and_writes_nothing(supervised: Start) -> None:
    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        if isinstance(message, m.Steps):
            link.send(m.Fenced(generation=1, reason="generation 2 has begun"))

    supervisor = supervised(react)

    codes = run_world(supervisor, 1, Plot(slow_s=0.5), generation=1)

    assert codes == [FENCED_EXIT]
    assert not supervisor.said(m.Saved)
    assert not list(supervisor.run.checkpoints.iterdir())


def test_a_save_that_cannot_fit_is_skipped_loudly_on_all_ranks(supervised: Start) -> None:
    supervisor = supervised(draining(m.Saved, deadline=time.time() - 5))

    codes = run_world(supervisor, 2, Plot(slow_s=0.2), generation=1)

    assert codes == [0, 0]
    last = supervisor.said(m.Leaving)[0][1].step
    saved = [message.step for _, message in supervisor.said(m.Saved)]
    assert saved == [4] and last > 4
    assert [f"no save at step {last}" in message.text for _, message in supervisor.said(m.Warned)] == [True]


def test_workers_that_need_not_leave_train_on_while_they_cannot_save(supervised: Start) -> None:
    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        publishing(supervisor, link, message)
        if isinstance(message, m.Saved) and message.step == 4:
            take_disk(supervisor)
            supervisor.links[1].send(m.Drain(epoch=1, generation=1, reason="growth", may_stay=True))
        if isinstance(message, m.Stayed):
            give_disk_back(supervisor)

    supervisor = supervised(react)

    assert run_world(supervisor, 2, Plot(slow_s=0.1), generation=1) == [0, 0]
    (stayed,) = (message for _, message in supervisor.said(m.Stayed))
    assert "no save at step" in stayed.reason and "the directory" in stayed.reason
    assert [message.why for _, message in supervisor.said(m.Leaving)] == ["finished", "finished"]
    assert [step.step for _, message in supervisor.said(m.Steps) for step in message.steps] == list(range(1, 17))


def test_workers_that_must_leave_save_again_while_the_time_allows(supervised: Start) -> None:
    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        publishing(supervisor, link, message)
        if isinstance(message, m.Saved) and message.step == 4:
            take_disk(supervisor)
            supervisor.links[1].send(m.Drain(epoch=1, generation=1, reason="notice", deadline=time.time() + 120))
        if isinstance(message, m.SaveFailed):
            failed = [failure.step for _, failure in supervisor.said(m.SaveFailed)]
            if len(failed) > len(set(failed)):  # the same step again
                give_disk_back(supervisor)

    supervisor = supervised(react)

    assert run_world(supervisor, 2, Plot(slow_s=0.1), generation=1) == [0, 0]
    left = {(message.why, message.step) for _, message in supervisor.said(m.Leaving)}
    assert left == {("drained", supervisor.said(m.Saved)[-1][1].step)}
    assert left == {("drained", supervisor.said(m.SaveFailed)[-1][1].step)}


def take_disk(supervisor: ScriptedSupervisor) -> None:
    """From here on no checkpoint can be written."""
    supervisor.run.checkpoints.rename(supervisor.run.path / "away")
    supervisor.run.checkpoints.write_text("")


def give_disk_back(supervisor: ScriptedSupervisor) -> None:
    supervisor.run.checkpoints.unlink()
    (supervisor.run.path / "away").rename(supervisor.run.checkpoints)


def test_workers_go_on_with_the_settings_before_when_a_fault_was_edited_into_them(supervised: Start) -> None:
    supervisor = supervised(publishing)
    supervisor.run.last_valid.write_text(RUN_YAML)
    supervisor.run.config.write_text("run: {name: [}")

    assert run_world(supervisor, 1, Plot(), generation=1) == [0]
    assert [message.text for _, message in supervisor.said(m.Warned) if "settings before" in message.text]


def test_a_run_whose_last_checkpoint_is_refused_is_not_finished(supervised: Start) -> None:
    def react(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        if isinstance(message, m.Saved) and message.step == 16:
            link.send(m.Published(step=16, ok=False, reason="No space left on device"))
        else:
            publishing(supervisor, link, message)

    supervisor = supervised(react)

    codes = run_world(supervisor, 2, Plot(), generation=1)

    assert 0 not in codes
    assert supervisor.said(m.Leaving) == []
    assert "No space left on device" in (supervisor.run.path / "log").read_text()


def test_workers_that_gave_their_supervisor_up_do_not_end_like_a_finished_run(supervised: Start) -> None:
    supervisor = supervised(publishing)
    supervisor.run.config.write_text(
        RUN_YAML.replace("200ms", "200ms, worker_timeout: 1s, agent_timeout: 1s, supervisor_timeout: 1s")
    )
    log = supervisor.run.path / "log"
    world = WorldOfProcesses(
        2, train, supervisor.run.path, Plot(slow_s=0.5), log=log, extra=supervisor.environment(generation=1)
    )
    deadline = time.monotonic() + 60
    while not supervisor.said(m.Steps) and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.close()

    codes = world.wait()

    assert FENCED_EXIT in codes
    assert 0 not in codes
