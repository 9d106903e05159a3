"""One rule each, with the moments just before and just after it begins to hold."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from machine.world import BASE, FakeJob, World, policy
from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e


def at_two(**changes: object) -> World:
    """The two base nodes train; companions may come."""
    world = World(policy(**changes)).start()
    world.pass_time(3)
    assert world.state.phase == "training"
    return world


def companion(world: World, job_id: int, node: str) -> None:
    world.jobs[job_id] = FakeJob(job_id, (node,), state="RUNNING")
    world.join(job_id)


def with_one(**changes: object) -> World:
    """Three nodes train, one of them a companion's (job 901, node c1)."""
    world = at_two(allowed_nodes=(2, 3), max_nodes=3, **changes)
    companion(world, 901, "c1")
    world.pass_time(4)
    assert len(world.state.members) == 3
    return world


def kinds(actions: tuple[a.Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_a_partial_growth_waits_for_those_on_their_way_and_no_longer_than_scaling_timeout() -> None:
    world = at_two(scaling_timeout=30.0)
    companion(world, 901, "c1")
    start = world.now
    world.now = start + 29.9
    assert "LaunchWorkers" not in kinds(world.feed(e.TimePassed()))
    world.now = start + 30.0

    assert "LaunchWorkers" in kinds(world.feed(e.TimePassed()))


def test_two_growths_are_scaling_timeout_apart() -> None:
    world = at_two(scaling_timeout=100.0, max_pending_companions=0)
    companion(world, 901, "c1")
    world.pass_time(5)
    opened = world.state.chosen_at
    assert opened is not None
    companion(world, 902, "c2")
    world.now = opened + 99.9
    assert "LaunchWorkers" not in kinds(world.feed(e.TimePassed()))
    world.now = opened + 100.0

    assert "LaunchWorkers" in kinds(world.feed(e.TimePassed()))


def test_a_growth_that_did_not_last_snoozes_and_doubles() -> None:
    world = with_one(scale_up_snooze_time=50.0)
    world.feed(e.NoticeReceived(job_id=901, source="SIGTERM", deadline=world.now + 20))

    assert world.state.grow_until == world.now + 50.0
    assert world.state.grow_level == 1


def test_a_growth_that_lasted_does_not_snooze() -> None:
    world = with_one(scaling_timeout=10.0, scale_up_snooze_time=20.0)
    world.pass_time(25)
    world.feed(e.NoticeReceived(job_id=901, source="SIGTERM", deadline=world.now + 20))

    assert world.state.grow_until == 0.0


def test_companions_that_are_taken_before_they_train_are_not_asked_for_again_at_once() -> None:
    world = at_two(scale_up_snooze_time=30.0, scaling_timeout=100.0)
    for job_id, node in ((901, "c1"), (902, "c2")):
        companion(world, job_id, node)
    start = world.now
    for job_id in (901, 902):
        world.feed(e.NoticeReceived(job_id=job_id, source="SIGUSR1", deadline=start + 20))
        world.end_job(job_id)

    assert (world.state.grow_level, world.state.grow_until) == (1, start + 30.0)  # both together count once
    world.feed(e.ScaleRequested(nodes=None))
    assert world.state.grow_until == 0.0


def test_a_companion_that_was_parked_for_long_may_go() -> None:
    world = at_two(scale_up_snooze_time=30.0, scaling_timeout=100.0)
    companion(world, 901, "c1")
    world.now += 30.0
    world.feed(e.NoticeReceived(job_id=901, source="SIGUSR1"))

    assert world.state.grow_until == 0.0


def test_a_growth_that_would_not_pay_is_not_made() -> None:
    world = at_two(allowed_nodes=(2, 3), max_nodes=3, prior_lifetime=60.0, prior_stall=20.0)
    world.state = replace(world.state, stall_s=20.0)
    companion(world, 901, "c1")
    world.pass_time(5)
    assert len(world.state.members) == 2
    world.feed(e.ScaleRequested(nodes=3))

    assert world.state.next is not None


@pytest.mark.parametrize(("left", "noticed"), [(3600.0, True), (3601.0, False)])
def test_a_preempt_time_with_a_far_end_is_no_notice(left: float, noticed: bool) -> None:
    world = with_one()
    record = e.JobRecord(
        job_id=901, state="RUNNING", nodes=("c1",), preempt_time=world.now - 5, end_time=world.now + left
    )
    world.feed(e.JobsSeen(jobs=(record,)))

    assert (world.state.next is not None) is noticed


@pytest.mark.parametrize(("left", "noticed"), [(80.0, True), (80.1, False)])
def test_the_time_limit_is_a_notice_when_it_is_near(left: float, noticed: bool) -> None:
    world = with_one()
    world.feed(e.JobsSeen(jobs=(e.JobRecord(job_id=901, state="RUNNING", end_time=world.now + left),)))

    assert (world.state.next is not None) is noticed


@pytest.mark.parametrize("elastic", [False, True])
def test_a_transition_tells_of_a_preemption_as_soon_as_slurms_record_does(elastic: bool) -> None:
    world = with_one()
    world.elastic = elastic
    world.feed(e.NoticeReceived(job_id=901, source="SIGUSR1", deadline=world.now + 20))
    world.jobs[901].preempt_time, world.jobs[901].end_time = world.now, world.now + 20
    world.poll()
    world.pass_time(10)

    last = world.all(a.RecordTransition)[-1]
    assert (last.kind, last.reason) == ("shrink", "job 901 with c1 is leaving (SIGUSR1, preempted)")


def test_a_growth_says_by_how_many_nodes() -> None:
    assert with_one().all(a.RecordTransition)[-1].reason == "1 node more is there"


def test_a_job_is_gone_after_two_answers_without_it() -> None:
    world = with_one()
    world.now += 20
    world.feed(e.JobsSeen(jobs=()))
    assert world.state.allocation(901) is not None
    world.feed(e.SlurmSilent(reason="down"))
    assert world.state.allocation(901) is not None
    actions = world.feed(e.JobsSeen(jobs=()))

    assert world.state.allocation(901) is None
    assert kinds(actions)[0] == "KillWorkers"


def test_a_fresh_job_may_be_missing_from_an_answer() -> None:
    world = at_two()
    token = world.state.allocations[-1].token
    assert token
    for wait in (1.0, 1.0, 1.0):
        world.now += wait
        world.feed(e.JobsSeen(jobs=()))

    assert any(x.token == token for x in world.state.allocations)


def test_a_companion_reclaimed_before_it_joined_backs_off() -> None:
    world = at_two(scale_up_snooze_time=40.0, max_pending_companions=1)
    job = next(j for j in world.jobs.values() if j.token)
    world.feed(e.JobsSeen(jobs=(e.JobRecord(job_id=job.job_id, state="PREEMPTED"),)))
    del world.jobs[job.job_id]
    start = world.now
    assert world.state.never_joined == 1
    world.now = start + 39.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now = start + 40.0

    assert kinds(world.feed(e.TimePassed())) == ["SubmitCompanion"]
    assert world.all(a.SubmitCompanion)[-1].token == "companion-00002"


def test_a_refusal_for_good_ends_the_asking_until_the_user_asks_again() -> None:
    world = at_two(companions=False)
    world.feed(e.CompanionRefused(token="companion-00001", reason="Invalid qos", permanent=True))

    assert world.state.submit_blocked == "Invalid qos"
    world.feed(e.ScaleRequested(nodes=None))
    assert world.state.submit_blocked == ""


def test_a_drain_that_takes_too_long_is_killed() -> None:
    world = with_one(graceful_shutdown_timeout=30.0)
    live = world.state.live
    assert live is not None
    world.feed(e.ScaleRequested(nodes=2))
    following = world.state.next
    assert following is not None
    for node in following.nodes:
        world.feed(e.NodeReady(generation=following.number, node=node))
    start = world.now
    world.now = start + 29.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now = start + 30.0

    assert "KillWorkers" in kinds(world.feed(e.TimePassed()))


def test_an_earlier_deadline_shortens_the_drain_and_starts_no_second_one() -> None:
    world = with_one(graceful_shutdown_timeout=30.0)
    world.feed(e.NoticeReceived(job_id=901, source="SIGUSR1", deadline=world.now + 100))
    following = world.state.next
    assert following is not None
    for node in following.nodes:
        world.feed(e.NodeReady(generation=following.number, node=node))
    assert len(world.all(a.DrainWorkers)) == 2  # the growth's, and this one
    world.now += 1
    world.feed(e.NoticeReceived(job_id=901, source="SIGTERM", deadline=world.now + 5))
    world.now += 4.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now += 0.1

    assert "KillWorkers" in kinds(world.feed(e.TimePassed()))
    assert len(world.all(a.DrainWorkers)) == 2


@pytest.mark.parametrize(
    ("left", "save_s", "lead"),
    [
        (30.0, None, 10.0),  # nobody knows how long a save takes
        (15.0, 2.0, 6.0),  # what the save and the way out leave
        (15.0, 8.0, 5.0),  # a third at least
        (900.0, 2.0, 20.0),
        (None, 2.0, 5.0),
    ],
)
def test_new_workers_may_warm_up_for_a_part_of_the_notice(
    left: float | None, save_s: float | None, lead: float
) -> None:
    world = with_one()
    world.state = msgspec.structs.replace(world.state, save_s=save_s)
    deadline = None if left is None else world.now + left
    world.feed(e.NoticeReceived(job_id=901, source="SIGTERM", deadline=deadline))
    start = world.now
    world.now = start + lead - 0.1
    assert kinds(world.feed(e.TimePassed())) == []
    world.now = start + lead

    assert kinds(world.feed(e.TimePassed())) == ["DrainWorkers"]


def test_killed_workers_that_never_end_are_left_behind_after_a_while() -> None:
    world = at_two(companions=False, allowed_nodes=(1, 2), kill_timeout=30.0)
    del world.workers[1, "b2"]  # nobody will ever say that it ended
    world.end_workers(1, "b1", exit_code=1)
    start = world.now
    world.feed(e.NodeReady(generation=2, node="b1"))
    world.feed(e.NodeReady(generation=2, node="b2"))
    world.now = start + 29.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now = start + 30.0
    opened = [x for x in world.feed(e.TimePassed()) if isinstance(x, a.OpenGate)]

    assert [m.node for m in opened[0].members] == ["b1"]


def test_a_deadline_too_near_for_a_save_is_said() -> None:
    world = at_two(companions=False)
    world.feed(e.CheckpointCommitted(generation=1, step=50, save_s=10.0))
    world.feed(e.NoticeReceived(job_id=BASE, source="SIGTERM", deadline=world.now + 15.9))

    drain = world.all(a.DrainWorkers)[-1]
    assert not drain.save
    assert "too little time" in world.state.reason


def test_workers_that_are_not_ready_in_time_make_their_node_suspect() -> None:
    world = World(policy(companions=False, launch_timeout=30.0)).start()
    world.feed(e.NodeReady(generation=1, node="b1"))
    world.now += 29.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now += 0.1
    actions = world.feed(e.TimePassed())

    assert "ProbeNode" in kinds(actions)
    assert next(x for x in actions if isinstance(x, a.OpenGate)).members == (a.Member(node="b1", job_id=BASE),)


def test_a_silent_companion_is_cancelled_after_a_minute_and_the_base_never() -> None:
    world = with_one()
    world.lose_power(901)
    world.jobs[BASE].agent = False
    world.feed(e.AgentLost(job_id=BASE, reason="silent"))
    start = world.now
    world.now = start + 59.9
    world.feed(e.TimePassed())
    assert 901 not in {x.job_id for x in world.all(a.CancelJob)}
    world.now = start + 60.0
    world.feed(e.TimePassed())
    assert 901 in {x.job_id for x in world.all(a.CancelJob)}
    world.now = start + 6000.0
    world.feed(e.TimePassed())

    cancelled = {x.job_id for x in world.all(a.CancelJob)}
    assert BASE not in cancelled


def test_after_a_restart_agents_have_their_time_to_report() -> None:
    world = with_one()
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, rejoin_s=10.0))
    start = world.now
    world.now = start + 9.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.join(BASE)
    world.now = start + 10.0
    actions = world.feed(e.TimePassed())

    assert kinds(actions)[0] == "KillWorkers"


def test_after_the_base_job_came_back_one_generation_waits_for_the_companions_that_may_still_report() -> None:
    world = with_one()
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, restart_count=1, rejoin_s=10.0))
    start = world.now
    joined = e.AgentJoined(job_id=BASE, role="base", nodes=("b1", "b2"), incarnation="n", restart_count=1)
    world.feed(joined)
    assert world.state.next is None
    world.now = start + 9.9
    world.feed(e.TimePassed())
    assert world.state.next is None
    world.now = start + 10.0
    world.feed(e.TimePassed())

    assert world.state.next is not None
    assert world.state.next.nodes == ("b1", "b2")


def test_after_the_base_job_came_back_no_companion_trains_before_it_is_there() -> None:
    world = at_two(max_nodes=3)
    companion(world, 901, "c1")
    world.pass_time(4)
    assert len(world.state.members) == 3
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, restart_count=1, rejoin_s=10.0))
    world.feed(e.AgentJoined(job_id=901, role="companion", nodes=("c1",), incarnation="c"))
    assert world.state.next is None
    world.feed(e.AgentJoined(job_id=BASE, role="base", nodes=("b1", "b2"), incarnation="n", restart_count=1))

    assert world.state.next is not None
    assert world.state.next.nodes == ("b1", "b2", "c1")


def test_a_step_that_ended_meanwhile_may_be_reported_just_after_its_agent() -> None:
    world = with_one()
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE, rejoin_s=10.0))
    live = world.state.live
    assert live is not None
    world.workers.clear()
    for job_id in (BASE, 901):
        world.join(job_id)
    for node in live.nodes:
        world.feed(e.NodeEnded(generation=live.number, node=node, said="finished"))

    assert world.over == "Finish"


def test_a_replacement_is_waited_for_as_long_as_the_policy_says() -> None:
    world = with_one(faulty_scale_down_timeout=20.0)
    world.lose_power(901)
    start = world.now
    world.now = start + 19.9
    assert "LaunchWorkers" not in kinds(world.feed(e.TimePassed()))
    world.now = start + 20.0

    assert "LaunchWorkers" in kinds(world.feed(e.TimePassed()))


def test_a_new_committed_step_gives_the_restart_budget_back() -> None:
    world = at_two(companions=False, max_restarts=1)
    for step in range(1, 5):
        world.feed(e.CheckpointCommitted(generation=world.state.generation, step=100 + step))
        world.end_workers(world.state.generation, "b1", exit_code=1)
        world.pass_time(3)

    assert not world.over
    assert world.transitions == ["start", "restart", "restart", "restart", "restart"]


def test_a_job_that_outlives_its_release_is_not_used_and_cancelled() -> None:
    world = with_one()
    world.feed(e.NoticeReceived(job_id=901, source="slurm record: preempted", deadline=world.now + 10))
    world.pass_time(5)
    world.jobs[901] = FakeJob(901, ("c1",), state="RUNNING")  # released, yet it stays
    world.pass_time(200)

    assert 901 not in {m.job_id for m in world.state.members}
    assert 901 in {x.job_id for x in world.all(a.CancelJob)}


def test_stop_saves_first_and_says_why() -> None:
    world = at_two(companions=False)
    world.feed(e.StopRequested(reason="asked by the user"))
    assert world.all(a.DrainWorkers)[-1].save
    world.pass_time(2)

    assert world.over == "Stop"
    assert world.state.reason == "asked by the user"


@pytest.mark.parametrize(("asked", "comes_back"), [(False, True), (True, False)])
def test_a_base_job_that_slurm_takes_comes_back_unless_the_user_wants_an_end(asked: bool, comes_back: bool) -> None:
    world = at_two(companions=False)
    world.feed(e.NoticeReceived(job_id=BASE, source="SIGUSR1", deadline=world.now + 60))
    if asked:
        world.feed(e.StopRequested())
    world.pass_time(2)
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE))  # the one before died before it carried this out

    assert world.all(a.DrainWorkers)[-1].save
    assert [stop.requeue for stop in world.all(a.Stop)] == [comes_back, comes_back]


def test_a_stopped_run_goes_on_under_a_new_job_and_a_finished_one_never() -> None:
    world = at_two(companions=False)
    world.feed(e.StopRequested())
    world.pass_time(2)
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE + 1))

    assert world.state.phase == "waiting"
    world.feed(e.AgentJoined(job_id=BASE + 1, role="base", nodes=("b1", "b2"), incarnation="n"))
    assert world.state.phase == "launching"
    assert world.state.last_number == 2


def test_a_run_that_gave_up_may_be_submitted_again() -> None:
    world = at_two(companions=False, max_restarts=0)
    world.end_workers(1, "b1", exit_code=1)
    assert world.over == "GiveUp"
    world.over = ""
    world.jobs[300] = replace_job(world.jobs.pop(BASE), 300)
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=300))
    world.feed(e.AgentJoined(job_id=300, role="base", nodes=("b1", "b2"), incarnation="n"))
    world.pass_time(5)

    assert world.state.phase == "training"
    assert world.transitions == ["start", "restart"]


def test_the_time_that_a_run_was_stopped_is_not_what_a_growth_costs() -> None:
    world = with_one()
    before = world.state.stall_s
    world.feed(e.StopRequested())
    world.pass_time(5)
    assert world.over == "Stop"
    world.over = ""
    world.jobs = {300: replace_job(world.jobs.pop(BASE), 300)}
    world.feed(e.SupervisorStarted(epoch=2, base_job_id=300))
    world.feed(e.AgentJoined(job_id=300, role="base", nodes=("b1", "b2"), incarnation="n"))
    for node in ("b1", "b2"):
        world.feed(e.NodeReady(generation=world.state.last_number, node=node))
    world.feed(e.GenerationStepping(generation=world.state.generation, step=9, stall_s=7200.0))

    assert world.transitions[-1] == "restart"
    assert world.state.stall_s == before


def draining_to_grow() -> World:
    """Two nodes are told to stop for a third."""
    world = at_two(allowed_nodes=(2, 3), max_nodes=3)
    companion(world, 901, "c1")
    world.feed(e.TimePassed())
    number = world.state.last_number
    assert world.state.next is not None
    for node in ("b1", "b2", "c1"):
        actions = world.feed(e.NodeReady(generation=number, node=node))
    assert [action.may_stay for action in actions if isinstance(action, a.DrainWorkers)] == [True]
    return world


@pytest.mark.parametrize("saved", [False, True])
def test_a_growth_whose_drain_could_not_save_loses_nothing_and_waits_for_a_checkpoint_or_a_minute(saved: bool) -> None:
    world = draining_to_grow()
    start = world.now
    actions = world.feed(e.WorkersStayed(generation=1, reason="disk full"))

    assert {(type(action), action.generation) for action in actions} == {(a.KillWorkers, 2)}  # behind the gate
    assert (world.state.phase, world.state.generation, world.state.next) == ("training", 1, None)
    assert "disk full" in world.state.reason
    world.feed(e.NodeEnded(generation=2, node="c1", exit_code=137))
    for node in ("b1", "b2"):
        world.feed(e.NodeEnded(generation=2, node=node, exit_code=137))
    world.now = start + (1.0 if saved else 59.9)
    assert "LaunchWorkers" not in kinds(world.feed(e.TimePassed()))
    if saved:
        actions = world.feed(e.CheckpointCommitted(generation=1, step=50))
    else:
        world.now = start + 60.0
        actions = world.feed(e.TimePassed())

    assert "LaunchWorkers" in kinds(actions)


def test_a_stop_that_could_not_save_is_tried_again_after_a_minute_and_when_it_is_asked_again() -> None:
    world = at_two(companions=False)
    world.feed(e.StopRequested())
    world.feed(e.WorkersStayed(generation=1, reason="disk full"))
    assert world.state.phase == "training"
    world.now += 59.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now += 0.1
    assert kinds(world.feed(e.TimePassed())) == ["DrainWorkers"]
    world.feed(e.WorkersStayed(generation=1, reason="disk full"))

    assert kinds(world.feed(e.StopRequested())) == ["DrainWorkers"]


def test_workers_whose_nodes_are_taken_may_not_stay() -> None:
    world = with_one()
    world.feed(e.NoticeReceived(job_id=901, source="SIGTERM"))
    world.now += 20
    drains = [action for action in world.feed(e.TimePassed()) if isinstance(action, a.DrainWorkers)]

    assert [drain.may_stay for drain in drains] == [False]


def replace_job(job: FakeJob, job_id: int) -> FakeJob:
    return FakeJob(job_id, job.nodes, state="RUNNING", agent=True)


@pytest.mark.parametrize(("exit_code", "signal"), [(0, 15), (143, 0), (137, 0)])
def test_a_script_that_knows_no_boundary_is_drained_by_a_signal(exit_code: int, signal: int) -> None:
    world = World(policy(allowed_nodes=(1, 2), companions=False)).start()
    world.feed(e.NodeReady(generation=1, node="b1"))
    world.feed(e.NodeReady(generation=1, node="b2"))
    world.feed(e.ScaleRequested(nodes=1))
    world.feed(e.NodeReady(generation=2, node="b1"))
    for node in ("b1", "b2"):
        world.end_workers(1, node, exit_code=exit_code, signal=signal)

    assert world.state.generation == 2
    assert world.state.failures == 0


def test_an_order_to_end_the_run_is_given_again_after_a_restart() -> None:
    world = at_two(companions=False)
    for node in ("b1", "b2"):
        world.end_workers(1, node, said="finished")
    actions = world.feed(e.SupervisorStarted(epoch=2, base_job_id=BASE))

    assert kinds(actions) == ["Finish"]


def test_parts_of_a_lost_gate_order_are_given_again() -> None:
    world = at_two(companions=False)

    assert kinds(world.feed(e.NodeReady(generation=1, node="b2"))) == ["OpenGate"]


def test_a_surplus_companion_is_given_back_after_a_while() -> None:
    world = with_one(scaling_timeout=10.0)
    companion(world, 902, "c2")
    start = world.now
    world.now = start + 19.9
    assert kinds(world.feed(e.TimePassed())) == []
    world.now = start + 20.0

    assert [x.job_id for x in world.feed(e.TimePassed()) if isinstance(x, a.ReleaseAllocation)] == [902]


def test_a_generation_that_does_not_start_is_one_failure_however_many_nodes_it_has() -> None:
    world = World(policy(allowed_nodes=(1, 2), companions=False)).start()
    for node in ("b1", "b2"):
        world.end_workers(1, node, exit_code=1)

    assert world.state.failures == 1
