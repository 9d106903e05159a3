from __future__ import annotations

import pytest

from slurm_elastic.machine.events import NodeEnded, NodeReady, WorkerLost
from slurm_elastic.supervisor.workers import Workers
from slurm_elastic.wire import messages as m
from tests.unit.supervisor.links import FakeLink, worker_hello


@pytest.fixture
def facts() -> list[object]:
    return []


@pytest.fixture
def workers(facts: list[object]) -> Workers:
    return Workers(facts.append, per_node=2, timeout_s=10)


def joined(workers: Workers, hello: m.WorkerHello, heard: float = 0.0) -> FakeLink:
    link = FakeLink(hello, heard)
    workers.joined(link, hello)
    return link


def test_a_node_is_ready_when_all_its_workers_wait(workers: Workers, facts: list[object]) -> None:
    joined(workers, worker_hello(local_rank=1))
    assert facts == []
    joined(workers, worker_hello(local_rank=0))
    assert facts == [NodeReady(generation=1, node="n1")]


def test_a_node_whose_worker_left_the_gate_is_not_ready(workers: Workers, facts: list[object]) -> None:
    workers.closed(joined(workers, worker_hello(local_rank=1)))
    joined(workers, worker_hello(local_rank=0))

    assert facts == []


def test_a_silent_worker_is_reported_once_per_node(workers: Workers, facts: list[object]) -> None:
    links = [joined(workers, worker_hello(local_rank=rank, stage="training"), heard=100) for rank in (0, 1)]

    workers.expire(now=109, amnesty=0)
    workers.expire(now=111, amnesty=0)
    workers.expire(now=112, amnesty=0)

    assert [type(fact) for fact in facts] == [WorkerLost]
    assert all(link.closed for link in links)


def test_a_shim_that_became_the_script_owes_no_sign_of_life(workers: Workers, facts: list[object]) -> None:
    workers.closed(joined(workers, worker_hello(stage="gate"), heard=100))

    workers.expire(now=1000, amnesty=0)

    assert facts == []


def test_a_trainer_that_lost_its_connection_has_to_come_back(workers: Workers, facts: list[object]) -> None:
    workers.closed(joined(workers, worker_hello(stage="training"), heard=100))

    workers.expire(now=111, amnesty=0)

    assert [type(fact) for fact in facts] == [WorkerLost]


def test_a_worker_that_said_good_bye_may_be_silent(workers: Workers, facts: list[object]) -> None:
    link = joined(workers, worker_hello(stage="training"), heard=100)
    workers.leaving(link, "drained")
    workers.closed(link)

    workers.expire(now=1000, amnesty=0)

    assert facts == []


@pytest.mark.parametrize(
    ("leaving", "exit_code", "said"),
    [
        ((0, 1), 0, "drained"),
        ((0,), 0, "drained"),
        ((), 0, ""),
        ((0, 1), 1, "drained"),  # a crash in the teardown after everything was said
        ((0,), 1, ""),
    ],
)
def test_what_the_workers_said_goes_with_the_end_of_their_step(
    workers: Workers, facts: list[object], leaving: tuple[int, ...], exit_code: int, said: str
) -> None:
    links = [joined(workers, worker_hello(local_rank=rank, stage="training")) for rank in (0, 1)]
    for rank in leaving:
        workers.leaving(links[rank], "drained")

    workers.step_ended(m.StepEnded(generation=1, node="n1", exit_code=exit_code))

    assert facts == [NodeEnded(generation=1, node="n1", exit_code=exit_code, said=said)]


def test_ended_workers_are_not_lost_later(workers: Workers, facts: list[object]) -> None:
    joined(workers, worker_hello(stage="training"), heard=100)
    workers.step_ended(m.StepEnded(generation=1, node="n1", exit_code=1))

    workers.expire(now=1000, amnesty=0)

    assert [type(fact) for fact in facts] == [NodeEnded]


def test_fencing_reaches_older_generations_unless_it_is_meant_alone(workers: Workers) -> None:
    old = joined(workers, worker_hello(generation=1, stage="training"))
    standby = joined(workers, worker_hello(generation=2))

    workers.fence(2, (), "given up", alone=True)
    assert (old.sent, len(standby.sent)) == ([], 1)
    workers.fence(2, (), "all of it")
    assert old.sent == [m.Fenced(generation=1, reason="all of it")]


def test_a_new_launch_lifts_the_fence_of_its_node(workers: Workers) -> None:
    joined(workers, worker_hello(generation=1))
    workers.fence(1, ("n1",), "frozen")
    assert workers.is_fenced(1, "n1")

    workers.launched(1, ["n1"])

    assert not workers.is_fenced(1, "n1")


def test_a_worker_that_trained_before_a_restart_of_the_supervisor_is_missed(
    workers: Workers, facts: list[object]
) -> None:
    workers.expect(1, ["n1", "n2"], heard=100)
    for rank in (0, 1):
        joined(workers, worker_hello(node="n1", local_rank=rank, stage="training"), heard=109)

    workers.expire(now=109, amnesty=0)
    assert facts == []
    workers.expire(now=111, amnesty=0)

    assert [(type(fact), fact.node) for fact in facts] == [(WorkerLost, "n2")]  # type: ignore[attr-defined]


def test_workers_that_are_killed_because_they_cannot_be_asked_have_not_failed(
    workers: Workers, facts: list[object]
) -> None:
    workers.killed_to_drain(1)
    workers.step_ended(m.StepEnded(generation=1, node="n1", exit_code=137, signal=9))
    workers.step_ended(m.StepEnded(generation=2, node="n1", exit_code=137, signal=9))

    assert [fact.said for fact in facts if isinstance(fact, NodeEnded)] == ["drained", ""]
