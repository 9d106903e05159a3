"""T2: the node of a companion is cut off from everybody while it trains, and comes back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.observe.events import read_events
from slurm_elastic.observe.ledger import read_ledger
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options
from tests.cluster.company import a_run
from tests.cluster.fencing import assert_nobody_is_left_of, assert_one_generation_wrote_after_the_other, workers_of
from tests.cluster.running import Running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]

# Slurm itself misses no node while the test lasts: what happens is our doing.
PATIENT = Options(nodes=3, grace_s=15, kill_wait_s=3, slurmd_timeout_s=3600)


@pytest.fixture
def patient(testbed_ground: str) -> Iterator[Cluster]:
    here = Cluster(f"{testbed_ground}-patient", PATIENT)
    try:
        here.up()
        yield here
    finally:
        here.down()


def test_the_others_train_on_and_the_cut_node_is_fenced_when_it_is_back(patient: Cluster, tmp_path: Path) -> None:
    with a_run(patient, tmp_path) as running:
        cut, node = three_that_have_saved(running)
        patient.cut_network(node)  # its worker waits in a collective
        running.wait_for_world(2)
        assert not patient.node_states()[node].startswith("down")
        told = running.transitions()[-1]
        assert (told.from_workers, told.to_workers, told.planned) == (3, 2, False)
        saved = saved_by(running, cut)
        resumed = next(line.step for line in read_ledger(running.run.ledger) if line.generation > cut) - 1
        assert resumed == saved  # the newest: no more is lost than was done since
        assert workers_of(patient, cut, node)  # nobody could tell it
        patient.heal_network(node)
        assert_nobody_is_left_of(patient, running, cut)
        assert saved_by(running, cut) == saved

        # A worker that hears of its end from nobody but the supervisor: neither from its peers nor from its agent.
        cut, node = three_that_have_saved(running)
        (tmp_path / f"{cut}-{node}").touch()  # it computes all the time
        patient.cut_network(node)
        running.wait(lambda status: any(job.status == "silent" for job in status.jobs), "it counts as lost")
        with without_its_agent(patient, node):
            patient.heal_network(node)
            patient.wait_until(lambda: not workers_of(patient, cut, node), 60, "the worker ends by itself")
        log = running.run.worker_log(cut, node, 0).read_text()
        assert f"fenced: generation {cut} " in log, log
        assert_nobody_is_left_of(patient, running, cut)
        running.wait(lambda _: any(line.generation > cut for line in read_ledger(running.run.ledger)), "steps")
        assert_one_generation_wrote_after_the_other(running)


def three_that_have_saved(running: Running) -> tuple[int, str]:
    """Their generation, and the node of the companion among them."""
    running.wait_for_world(3, 120)
    generation = running.status().generation
    running.wait(lambda _: saved_by(running, generation) > 0, "a checkpoint of three")
    return generation, running.companion()[1]


@contextmanager
def without_its_agent(cluster: Cluster, node: str) -> Iterator[None]:
    agents = cluster.programs("slurm_elastic.agent", node=node)
    assert agents
    for agent in agents:
        agent.process.signal(signal.SIGSTOP)
    yield
    for agent in agents:
        agent.process.signal(signal.SIGCONT)


def saved_by(running: Running, generation: int) -> int:
    """The step of the newest checkpoint that was made public by a generation, 0: none."""
    events = read_events(running.run.events)
    steps = [one.figures["step"] for one in events if one.kind == "checkpoint" and one.generation == generation]
    return max(steps, default=0)
