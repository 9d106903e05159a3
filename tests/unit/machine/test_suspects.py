"""Nodes that must prove themselves: what counts against them, and what does not."""

from __future__ import annotations

from machine.test_rules import with_one
from machine.world import World
from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e


def asked(world: World) -> int:
    return sum(isinstance(order, a.ProbeNode) and order.node == "c1" for order in world.orders)


def suspected() -> World:
    """Two nodes train; c1 of job 901 has been asked to prove itself, and has not answered yet."""
    world = with_one()
    world.dead.add("c1")
    world.feed(e.WorkerLost(generation=world.state.generation, node="c1", reason="silent"))
    assert [suspect.node for suspect in world.state.suspects] == ["c1"]
    assert asked(world) == 1
    return world


def test_an_agent_that_is_back_is_asked_at_once_what_it_was_asked_before_it_went_away() -> None:
    world = suspected()
    world.feed(e.AgentLost(job_id=901, reason="silent"))
    world.now += 1
    world.dead.clear()
    world.join(901)

    assert asked(world) == 2
    assert world.state.suspects == ()


def test_an_agent_that_only_connects_again_still_owes_its_answer() -> None:
    world = suspected()
    world.join(901)

    assert asked(world) == 1


def test_probes_that_fail_while_the_controller_is_away_do_not_count() -> None:
    world = suspected()
    world.feed(e.SlurmSilent(reason="down"))
    for _ in range(5):
        world.feed(e.NodeProbed(node="c1", ok=False, detail="no controller"))
        world.now += 15.0
        world.feed(e.TimePassed())
    assert asked(world) == 6  # every 15 s
    world.poll()
    world.feed(e.NodeProbed(node="c1", ok=False, detail="no memory yet"))
    world.dead.clear()
    world.now += 15.0
    world.feed(e.TimePassed())

    assert "c1" not in {suspect.node for suspect in world.state.suspects}
    assert world.all(a.ReleaseAllocation) == []
