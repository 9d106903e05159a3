"""Live transitions in the make-believe cluster: who stays, who goes, in which order, and when all start anew."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machine.test_world import FAULTS, settle, story, strike
from machine.world import BASE, REGROUPS, TRAINS, World, policy
from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e


def live_world(**changes: object) -> World:
    return World(policy(live=True, **changes), free=["c1", "c2", "c3"], elastic=True)


def grown(**changes: object) -> World:
    """Five nodes train, after one live growth."""
    world = live_world(**changes).start()
    world.pass_time(20)
    assert len(world.state.members) == 5
    return world


def last_regroup(world: World) -> a.Regroup:
    order = world.all(a.Regroup)[-1]
    assert isinstance(order, a.Regroup)
    return order


def modes(world: World) -> list[tuple[str, str]]:
    return [(x.kind, x.mode) for x in world.orders if isinstance(x, a.RecordTransition)]


def test_a_growth_starts_only_the_new_nodes_and_stops_nobody() -> None:
    world = grown()

    assert modes(world) == [("start", "relaunch"), ("grow", "live")]
    assert [[m.node for m in x.members] for x in world.all(a.LaunchWorkers)] == [["b1", "b2"], ["c1", "c2", "c3"]]
    assert [x.standby for x in world.all(a.LaunchWorkers)] == [False, True]
    assert not world.all(a.DrainWorkers) + world.all(a.KillWorkers)
    order = last_regroup(world)
    assert [(m.node, m.launch) for m in order.members] == [("b1", 1), ("b2", 1), ("c1", 2), ("c2", 2), ("c3", 2)]
    assert (order.generation, order.before, order.planned, order.departing) == (3, 1, True, ())


def test_the_old_ones_train_until_the_standby_is_warm() -> None:
    world = live_world()
    world.latency = 6.0
    world.start()
    world.pass_time(12)

    assert world.state.next is not None
    assert world.state.next.standby
    assert world.state.generation == 1
    assert world.state.phase == "training"


def test_a_notice_regroups_at_once_without_those_who_leave_and_gives_them_back() -> None:
    world = grown()
    leaving = world.companions()[0]
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 20))
    order = last_regroup(world)

    assert [m.node for m in order.members] == ["b1", "b2", "c2", "c3"]
    assert [(m.node, m.launch) for m in order.departing] == [("c1", 2)]
    assert order.deadline == world.now + 20
    assert leaving in world.jobs
    world.pass_time(3)
    assert leaving not in world.jobs
    assert modes(world)[-1] == ("shrink", "live")
    assert not world.all(a.KillWorkers)


def test_who_does_not_leave_in_time_is_ended() -> None:
    world = grown(graceful_shutdown_timeout=5.0)
    job_id = world.companions()[0]
    world.feed(e.NoticeReceived(job_id=job_id, source="SIGUSR1"))
    order = last_regroup(world)
    world.regroup = None
    world.feed(e.GenerationRegrouped(generation=order.generation, step=9))
    start = world.now
    world.now = start + 4.9
    world.feed(e.TimePassed())
    assert not world.all(a.KillWorkers)
    world.now = start + 5.0
    actions = world.feed(e.TimePassed())

    kill = actions[0]
    assert isinstance(kill, a.KillWorkers)
    assert (kill.generation, kill.nodes, kill.alone) == (2, ("c1",), True)
    assert a.ReleaseAllocation in {type(x) for x in actions}


def test_a_replacement_that_waits_joins_with_the_same_regroup() -> None:
    world = World(policy(live=True, allowed_nodes=(2, 3), max_nodes=3), free=["c1"], elastic=True).start()
    world.pass_time(20)
    world.free = ["c2"]
    world.jobs[901] = type(world.jobs[BASE])(901, ("c2",), state="RUNNING")
    world.join(901)
    leaving = next(j.job_id for j in world.jobs.values() if j.nodes == ("c1",))
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 60))
    world.pass_time(3)

    order = last_regroup(world)
    assert [m.node for m in order.members] == ["b1", "b2", "c2"]
    assert [m.node for m in order.departing] == ["c1"]
    assert modes(world)[-1] == ("replace", "live")


def test_no_time_for_a_standby_means_to_go_without_it() -> None:
    world = World(policy(live=True, allowed_nodes=(2, 3), max_nodes=3), free=["c1"], elastic=True).start()
    world.pass_time(20)
    world.latency = 100.0
    world.jobs[901] = type(world.jobs[BASE])(901, ("c2",), state="RUNNING")
    world.join(901)
    leaving = next(j.job_id for j in world.jobs.values() if j.nodes == ("c1",))
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 15))
    world.pass_time(4)
    assert last_regroup(world).departing == ()
    world.pass_time(1)

    assert [m.node for m in last_regroup(world).members] == ["b1", "b2"]
    assert [(x.generation, x.nodes) for x in world.all(a.KillWorkers)] == [(4, ("c2",))]


@pytest.mark.parametrize("how", ["power", "crash", "freeze", "gone without a word"])
def test_a_loss_kills_nobody_but_the_lost(how: str) -> None:
    world = grown()
    job_id = world.companions()[0]
    match how:
        case "power":
            world.lose_power(job_id)
        case "crash":
            world.end_workers(2, "c1", exit_code=1)
        case "freeze":
            world.feed(e.WorkerLost(generation=2, node="c1", reason="frozen"))
        case _:
            world.end_workers(2, "c1")

    order = last_regroup(world)
    assert not order.planned
    assert [m.node for m in order.members] == ["b1", "b2", "c2", "c3"]
    assert [(x.generation, x.nodes, x.alone) for x in world.all(a.KillWorkers)] == [(2, ("c1",), True)]
    assert world.state.failures == (0 if how == "power" else 1)
    world.pass_time(3)
    assert modes(world)[-1] == ("replace", "live")
    assert world.state.failures == 0


def test_a_lost_node_comes_back_as_a_growth() -> None:
    world = grown(scaling_timeout=20.0)
    world.end_workers(2, "c1", exit_code=1)
    world.pass_time(60)

    assert modes(world)[-2:] == [("replace", "live"), ("grow", "live")]
    assert [(m.node, m.launch) for m in last_regroup(world).members][-1] == ("c1", 5)


def test_a_loss_during_a_regroup_makes_the_next_one() -> None:
    world = grown()
    world.stuck = True
    world.feed(e.NoticeReceived(job_id=world.companions()[0], source="SIGUSR1", deadline=world.now + 60))
    first = last_regroup(world)
    world.end_workers(1, "b2", exit_code=1)
    second = last_regroup(world)

    assert second.generation == first.generation + 1
    assert [m.node for m in second.members] == ["b1", "c2", "c3"]
    assert [m.node for m in second.departing] == ["c1"]
    assert (second.before, second.planned) == (first.before, False)
    world.end_workers(2, "c1", exit_code=1)  # it had things to hand over
    third = last_regroup(world)
    assert third.members == second.members
    assert third.departing == ()


def test_a_second_notice_waits_for_the_first_regroup_but_not_too_long() -> None:
    world = grown()
    world.stuck = True
    first, second = world.companions()[:2]
    world.feed(e.NoticeReceived(job_id=first, source="SIGUSR1", deadline=world.now + 60))
    count = len(world.all(a.Regroup))
    world.feed(e.NoticeReceived(job_id=second, source="SIGUSR1", deadline=world.now + 12))
    assert len(world.all(a.Regroup)) == count
    world.pass_time(4)

    order = last_regroup(world)
    assert [m.node for m in order.members] == ["b1", "b2", "c3"]
    assert {m.node for m in order.departing} == {"c1", "c2"}


@pytest.mark.parametrize("how", ["never", "failed"])
def test_who_cannot_regroup_starts_anew_from_a_checkpoint(how: str) -> None:
    world = grown()
    world.stuck = True
    world.feed(e.ScaleRequested(nodes=3))
    order = last_regroup(world)
    if how == "failed":
        world.feed(e.RegroupFailed(generation=order.generation, reason="a shard is gone everywhere"))
    else:
        world.pass_time(29)
        assert world.state.generation == order.generation
        world.pass_time(1)
    world.pass_time(5)

    kill = world.all(a.KillWorkers)[0]
    assert (kill.generation, kill.nodes) == (order.generation, ())  # type: ignore[attr-defined]
    assert world.state.phase == "training"
    assert world.transitions[-1] == "replace"
    assert modes(world)[-1][1] == "relaunch"
    assert len(world.state.members) == 3


def test_too_few_survivors_are_killed_and_the_run_waits() -> None:
    world = World(policy(live=True, allowed_nodes=(3, 4), max_nodes=4), free=["c1"], elastic=True).start()
    world.pass_time(20)
    world.lose_power(world.companions()[0])

    assert not world.all(a.Regroup)
    assert modes(world)[-1][0] == "wait"
    assert world.all(a.KillWorkers)[0].nodes == ()  # type: ignore[attr-defined]


def test_a_stumble_without_a_loss_regroups_once_and_then_all_start_anew() -> None:
    world = grown(stumble_patience=11.0)
    world.stuck = True
    world.feed(e.GenerationStumbled(generation=3))
    count = len(world.all(a.Regroup))
    world.pass_time(10)
    assert len(world.all(a.Regroup)) == count
    world.pass_time(1)
    order = last_regroup(world)
    assert [m.node for m in order.members] == ["b1", "b2", "c1", "c2", "c3"]
    world.feed(e.GenerationStumbled(generation=order.generation))
    world.pass_time(15)

    assert modes(world)[-1] == ("restart", "relaunch")


def test_a_training_that_ends_before_the_newcomers_are_in_is_finished() -> None:
    world = live_world()
    world.stuck = True
    world.start()
    world.pass_time(12)
    assert last_regroup(world).generation == 3
    for node in ("b1", "b2"):
        world.end_workers(1, node, said="finished")
    world.pass_time(1)

    assert world.over == "Finish"


def test_a_stop_during_a_regroup_saves_first() -> None:
    world = grown()
    world.feed(e.ScaleRequested(nodes=4))
    world.feed(e.StopRequested())

    assert world.all(a.DrainWorkers)[-1].generation == last_regroup(world).generation  # type: ignore[attr-defined]
    world.pass_time(5)
    assert world.over == "Stop"
    assert not world.all(a.KillWorkers)


def test_a_script_of_another_level_never_regroups() -> None:
    world = World(policy(live=True), free=["c1", "c2", "c3"]).start()
    world.pass_time(20)
    world.lose_power(world.companions()[0])
    world.pass_time(10)

    assert not world.all(a.Regroup)
    assert {mode for _, mode in modes(world)} == {"relaunch"}


def test_a_restarted_supervisor_orders_an_unfinished_regroup_again() -> None:
    world = grown()
    world.stuck = True
    world.feed(e.ScaleRequested(nodes=4))
    order = last_regroup(world)
    world.restart_supervisor()

    assert last_regroup(world) == order
    assert len(world.all(a.Regroup)) == 3
    world.stuck = False
    world.pass_time(3)
    assert world.state.live is not None
    assert world.state.live.regrouped_at is not None


FAULTS_LIVE = st.lists(st.one_of(FAULTS.map(tuple), st.just(("stumble",)), st.just(("stuck",))), max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FAULTS_LIVE)
def test_after_any_faults_training_goes_on_live(faults: list[tuple[object, ...]]) -> None:
    world = live_world(max_restarts=99).start()
    world.pass_time(6)
    for group in faults:
        for fault in (group,) if group in (("stumble",), ("stuck",)) else group:
            if world.over:
                break
            match fault:
                case ("stumble",):
                    world.feed(e.GenerationStumbled(generation=world.state.generation))
                case ("stuck",):
                    world.stuck = not world.stuck
                case (str() as name, int() as which, float() as wait):
                    strike(world, name, which)
                    world.pass_time(wait)
    world.stuck = False
    settle(world)

    assert not world.over
    assert REGROUPS not in {what for what, _ in world.workers.values()}


@pytest.mark.parametrize("broken_at", range(30))
def test_a_supervisor_that_dies_before_any_order_converges_live(broken_at: int) -> None:
    world = live_world(max_restarts=99)
    world.crash_after = broken_at
    story(world)
    settle(world)

    assert not world.over
    assert all(what == TRAINS for what, _ in world.workers.values())
