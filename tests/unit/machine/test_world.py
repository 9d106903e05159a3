"""Whole stories in a make-believe cluster: sizes, losses, flapping, restarts of the supervisor."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machine.world import BASE, TRAINS, FakeJob, World, policy
from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e


def grown(**changes: object) -> World:
    """Five nodes train."""
    world = World(policy(**changes), free=["c1", "c2", "c3"]).start()
    world.pass_time(20)
    assert len(world.state.members) == 5
    return world


def test_three_companions_within_one_scaling_timeout_make_one_growth() -> None:
    world = World(policy(scaling_timeout=30)).start()
    for node in ("c1", "c2", "c3"):
        world.free.append(node)
        world.pass_time(8)
    world.pass_time(60)

    assert world.transitions == ["start", "grow"]
    assert len(world.state.members) == 5


def test_no_more_companions_are_asked_for_than_max_nodes_needs() -> None:
    world = World(policy(), free=[f"c{i}" for i in range(9)]).start()
    world.pass_time(300)

    assert len(world.all(a.SubmitCompanion)) == 3
    assert len(world.state.members) == 5


def test_a_notice_shrinks_after_one_drain_and_gives_the_job_back_early() -> None:
    world = grown()
    leaving = world.companions()[0]
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 20))
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGTERM", deadline=world.now + 25))
    drains = len(world.all(a.DrainWorkers))
    world.pass_time(8)

    assert world.transitions[-1] == "shrink"
    assert len(world.all(a.DrainWorkers)) == drains + 1
    assert leaving not in world.jobs
    assert len(world.state.members) == 4


def test_the_old_workers_train_until_the_new_ones_are_warm() -> None:
    world = grown()
    world.latency = 4.0
    leaving = world.companions()[0]
    old = world.state.live
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 60))
    world.pass_time(3)

    assert old is not None
    assert world.state.phase == "training"
    assert world.state.next is not None
    world.pass_time(1)
    assert world.draining.get(old.number) == world.now


def test_a_short_notice_does_not_wait_for_warm_workers() -> None:
    world = grown()
    world.latency = 15.0
    live = world.state.live
    leaving = world.companions()[0]
    world.feed(e.NoticeReceived(job_id=leaving, source="SIGUSR1", deadline=world.now + 12))
    world.pass_time(3)
    assert world.state.phase == "training"
    world.pass_time(1)

    assert live is not None
    assert live.number in world.draining
    assert world.state.phase == "draining"


def test_a_node_that_loses_power_is_replaced_by_a_smaller_world_at_once() -> None:
    world = grown()
    lost = world.companions()[0]
    world.lose_power(lost)
    world.pass_time(3)

    assert world.transitions[-1] == "replace"
    assert len(world.state.members) == 4
    world.pass_time(70)
    assert lost in [x.job_id for x in world.all(a.CancelJob)]


def test_the_survivors_fail_first_and_the_dead_node_is_found_later() -> None:
    world = grown()
    lost = world.jobs[world.companions()[0]]
    lost.agent = False
    world.dead |= set(lost.nodes)
    for generation, node in [k for k in world.workers if k[1] not in lost.nodes]:
        world.end_workers(generation, node, exit_code=1)
    world.pass_time(5)
    launched = world.state.last_number
    world.feed(e.AgentLost(job_id=lost.job_id, reason="silent"))

    assert len(world.state.members) == 4
    assert world.state.generation == launched  # the warm workers were kept


def test_too_few_nodes_pause_the_run_and_it_goes_on_when_they_are_back() -> None:
    world = World(policy(allowed_nodes=(3, 4), max_nodes=4), free=["c1"]).start()
    world.pass_time(20)
    assert len(world.state.members) == 3
    world.feed(e.NoticeReceived(job_id=world.companions()[0], source="SIGTERM", deadline=world.now + 20))
    world.pass_time(1, tick=0.5)

    assert world.transitions[-1] == "wait"
    assert "at least 3" in world.all(a.RecordTransition)[-1].reason
    world.pass_time(600)
    assert world.state.phase == "training"
    assert world.transitions[-1] == "grow"


def test_flapping_capacity_makes_few_transitions_and_training_goes_on() -> None:
    world = World(policy(scaling_timeout=20, scale_up_snooze_time=30)).start()
    for _ in range(6):
        world.free = ["c1"]
        world.pass_time(10)
        world.free = []
        for job_id in world.companions():
            world.feed(e.NoticeReceived(job_id=job_id, source="SIGUSR1", deadline=world.now + 8))
        world.pass_time(10)
        for job_id in world.companions():
            world.end_job(job_id)
        world.free = []

    assert len(world.transitions) <= 1 + 2 * 3
    assert world.state.phase == "training"


def test_slurm_that_does_not_answer_changes_nothing_but_the_note() -> None:
    world = grown()
    orders = len(world.orders)
    world.silent = True
    world.pass_time(60)

    assert len(world.orders) == orders
    assert world.state.slurm_silent_since is not None
    world.silent = False
    world.pass_time(10)
    assert world.state.slurm_silent_since is None
    assert len(world.state.members) == 5


def test_the_base_job_goes_and_the_run_saves_and_stops() -> None:
    world = grown()
    world.feed(e.NoticeReceived(job_id=BASE, source="time limit", deadline=world.now + 60))
    world.pass_time(10)

    assert world.over == "Stop"
    assert "base job" in world.state.reason
    assert world.all(a.DrainWorkers)[-1].save


def test_a_requeued_base_job_goes_on_with_the_companions_that_live() -> None:
    world = grown()
    base = world.jobs[BASE]
    world.workers = {k: v for k, v in world.workers.items() if k[1] not in base.nodes}
    base.nodes, base.incarnation = ("b8", "b9"), 2
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, restart_count=1, rejoin_s=10.0))
    for job_id in world.companions():
        world.join(job_id)
    world.feed(e.AgentJoined(job_id=BASE, role="base", nodes=base.nodes, incarnation="2", restart_count=1))
    world.pass_time(90)

    assert world.state.phase == "training"
    assert {m.node for m in world.state.members} == {"b8", "b9", "c1", "c2", "c3"}


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("companions_left", [True, False])
@pytest.mark.parametrize(("ending", "job_id"), [("notice", 300), ("notice", BASE), ("asked", 300)])
def test_a_base_job_that_was_gone_before_the_run_had_ended_leaves_no_ending_to_the_next(
    ending: str, job_id: int, companions_left: bool, elastic: bool
) -> None:
    world = grown(max_restarts=0)
    world.elastic = elastic
    world.pass_time(3)
    if ending == "asked":
        world.feed(e.StopRequested())
    else:
        world.feed(e.NoticeReceived(job_id=BASE, source="SIGTERM", deadline=world.now + 5))
    assert world.state.phase == "draining"
    base = world.jobs.pop(BASE)
    world.workers = {k: v for k, v in world.workers.items() if k[1] not in base.nodes}
    restarts = int(job_id == BASE)
    world.jobs[job_id] = FakeJob(job_id, base.nodes, state="RUNNING", agent=True, incarnation=2)
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=job_id, restart_count=restarts, rejoin_s=10.0))
    for companion in list(world.companions()):
        if companion != job_id:
            world.join(companion) if companions_left else world.end_job(companion)
    joined = e.AgentJoined(job_id=job_id, role="base", nodes=base.nodes, incarnation="2", restart_count=restarts)
    world.feed(joined)
    world.pass_time(120)

    assert (world.over, world.state.phase, world.state.ending) == ("", "training", "")
    assert {"b1", "b2"} <= {m.node for m in world.state.members}


def test_a_run_that_was_asked_to_stop_stops_also_when_its_base_job_is_requeued_meanwhile() -> None:
    world = grown()
    world.feed(e.StopRequested())
    base = world.jobs[BASE]
    world.workers = {k: v for k, v in world.workers.items() if k[1] not in base.nodes}
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, restart_count=1, rejoin_s=10.0))
    for companion in world.companions():
        world.join(companion)
    world.pass_time(10)

    assert world.over == "Stop"


def test_a_finished_training_finishes_the_run() -> None:
    world = grown()
    for generation, node in list(world.workers):
        world.end_workers(generation, node, said="finished")

    assert world.over == "Finish"
    assert world.state.phase == "finished"


def test_a_worker_that_always_fails_ends_the_run_and_is_named() -> None:
    world = World(policy(companions=False)).start()
    for _ in range(4):
        world.now += 5
        world._workers_move()
        generation = world.state.generation
        world.workers.pop((generation, "b1"), None)
        world.feed(e.NodeEnded(generation=generation, node="b1", exit_code=7, detail="rank 0: no such file"))

    assert world.over == "GiveUp"
    assert "rank 0: no such file" in world.state.reason
    assert "exit code 7" in world.state.reason


def test_a_frozen_worker_is_lost_and_its_node_must_prove_itself() -> None:
    world = grown()
    node = world.jobs[world.companions()[0]].nodes[0]
    world.feed(e.WorkerLost(generation=world.state.generation, node=node, reason="frozen"))

    assert [x.node for x in world.all(a.ProbeNode)] == [node]
    world.pass_time(5)
    assert world.state.phase == "training"


def test_a_suspended_companion_is_lost_and_its_old_workers_end_when_it_thaws() -> None:
    world = grown()
    job = world.jobs[world.companions()[0]]
    old = world.state.generation
    job.state, job.agent = "SUSPENDED", False
    world.poll()
    world.pass_time(5)
    assert len(world.state.members) == 4
    job.state = "RUNNING"
    world.join(job.job_id)

    assert (old, job.nodes[0]) not in world.workers


def test_asking_for_fewer_nodes_shrinks_and_releases_at_once() -> None:
    world = grown()
    world.feed(e.ScaleRequested(nodes=3))
    world.pass_time(5)

    assert len(world.state.members) == 3
    assert len(world.companions()) == 1
    world.feed(e.ScaleRequested(nodes=None))
    world.pass_time(10)
    assert len(world.state.members) == 5


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["power", "notice", "crash", "freeze", "gone", "supervisor", "agent", "silent", "scale", "node", "suspend"]
        ),
        st.integers(0, 7),
        st.floats(0.0, 25.0),
    ),
    max_size=7,
)


def strike(world: World, fault: str, which: int) -> None:
    jobs = world.companions()
    job = world.jobs[jobs[which % len(jobs)]] if jobs else None
    running = sorted(world.workers)
    match fault:
        case "power" if job:
            world.lose_power(job.job_id)
        case "notice" if job:
            world.feed(e.NoticeReceived(job_id=job.job_id, source="SIGTERM", deadline=world.now + which * 5))
        case "crash" if running:
            world.end_workers(*running[which % len(running)], exit_code=1)
        case "freeze" if running:
            generation, node = running[which % len(running)]
            world.feed(e.WorkerLost(generation=generation, node=node, reason="frozen"))
        case "gone" if job:
            world.end_job(job.job_id)
            world.feed(e.AgentLost(job_id=job.job_id, reason="silent"))
        case "supervisor":
            world.restart_supervisor()
        case "agent":
            hit = world.jobs[BASE] if job is None or which == 0 else job
            world.workers = {k: v for k, v in world.workers.items() if k[1] not in hit.nodes}
            hit.incarnation += 1
            if hit.agent:
                world.join(hit.job_id)
        case "silent":
            world.silent = not world.silent
        case "scale":
            world.feed(e.ScaleRequested(nodes=which or None))
        case "node" if job:
            job.nodes = ()
            world.poll()
        case "suspend" if job:
            job.state = "SUSPENDED"
            world.poll()
            job.state = "RUNNING"
            world.poll()


def settle(world: World) -> None:
    world.silent = False
    world.dead.clear()
    world.pass_time(400, tick=4.0)
    if not world.over:
        assert world.state.phase == "training", world.state.reason
        live = world.state.live
        assert live is not None
        assert live.well
        seats = {(live.launch_of(m), m.node) for m in live.members}
        assert all(world.workers.get(seat, ("", 0))[0] == TRAINS for seat in seats)
        expected = {world.state.next.number} if world.state.next else set()
        assert {seat for seat in world.workers if seat[0] not in expected} == seats


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FAULTS)
def test_after_any_faults_training_goes_on(faults: list[tuple[str, int, float]]) -> None:
    world = World(policy(max_restarts=99), free=["c1", "c2", "c3"]).start()
    world.pass_time(6)
    for fault, which, wait in faults:
        if not world.over:
            strike(world, fault, which)
            world.pass_time(wait)
    settle(world)

    assert not world.over


def story(world: World) -> None:
    """A day: growth, notice, loss of power, scale; used to break the supervisor at every order."""
    world.start()
    world.pass_time(8)
    if jobs := world.companions():
        world.feed(e.NoticeReceived(job_id=jobs[0], source="SIGTERM", deadline=world.now + 20))
    world.pass_time(8)
    if jobs := world.companions():
        world.lose_power(jobs[0])
    world.pass_time(8)
    world.feed(e.ScaleRequested(nodes=2))
    world.pass_time(8)
    world.feed(e.ScaleRequested(nodes=None))
    world.pass_time(8)


def orders_in_the_story() -> int:
    world = World(policy(), free=["c1", "c2", "c3"])
    story(world)
    return world.carried_out


@pytest.mark.parametrize("broken_at", range(30))
def test_a_supervisor_that_dies_before_any_order_converges_after_its_restart(broken_at: int) -> None:
    world = World(policy(max_restarts=99), free=["c1", "c2", "c3"], crash_after=broken_at)
    story(world)
    settle(world)

    assert not world.over
    assert len({j.token for j in world.jobs.values()}) == len(world.jobs)


def test_the_story_has_no_more_orders_than_are_broken() -> None:
    assert 20 < orders_in_the_story() <= 30
