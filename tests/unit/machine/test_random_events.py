"""Any events in any order, also impossible ones: the invariants of `world.check` hold after each."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machine.world import BASE, check, policy
from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e
from slurm_elastic.machine.state import initial
from slurm_elastic.machine.step import step

JOBS = st.sampled_from([BASE, 201, 202, 203])
NODES = st.sampled_from(["b1", "b2", "c1", "c2", "c3"])
GENERATIONS = st.integers(1, 6)
OF = {BASE: ("b1", "b2"), 201: ("c1",), 202: ("c2",), 203: ("c2", "c3")}
MAYBE_TIME = st.one_of(st.none(), st.floats(900, 2000))
TOKENS = st.sampled_from(["companion-00001", "companion-00002", "companion-00003", "other"])
HELD = st.lists(st.builds(e.StepHeld, generation=GENERATIONS, node=NODES), max_size=2).map(tuple)
STATES = st.sampled_from(["PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CANCELLED", "SIGNALING", "WEIRD"])

RECORDS = st.builds(
    lambda job, state, end, preempt, cut: e.JobRecord(
        job_id=job, state=state, nodes=OF[job][cut:], end_time=end, preempt_time=preempt
    ),
    JOBS,
    STATES,
    MAYBE_TIME,
    MAYBE_TIME,
    st.integers(0, 1),
)
EVENTS = st.one_of(
    st.builds(e.SupervisorStarted, epoch=st.integers(1, 9), base_job_id=st.just(BASE), restart_count=st.integers(0, 1)),
    st.builds(
        lambda job, inc, steps, restart: e.AgentJoined(
            job_id=job,
            role="base" if job == BASE else "companion",
            nodes=OF[job],
            incarnation=inc,
            steps=steps,
            restart_count=restart,
        ),
        JOBS,
        st.sampled_from(["x", "y"]),
        HELD,
        st.sampled_from([0, 0, 0, 1]),
    ),
    st.builds(e.AgentLost, job_id=JOBS, reason=st.just("silent")),
    st.builds(e.NoticeReceived, job_id=JOBS, source=st.just("SIGTERM"), deadline=MAYBE_TIME),
    st.builds(e.JobsSeen, jobs=st.lists(RECORDS, max_size=4).map(tuple)),
    st.builds(e.SlurmSilent, reason=st.just("down")),
    st.builds(e.CompanionSubmitted, token=TOKENS, job_id=st.sampled_from([201, 202, 203])),
    st.builds(e.CompanionRefused, token=TOKENS, reason=st.just("no"), permanent=st.booleans()),
    st.builds(e.NodeReady, generation=GENERATIONS, node=NODES),
    st.builds(
        e.NodeEnded,
        generation=GENERATIONS,
        node=NODES,
        exit_code=st.sampled_from([0, 1]),
        said=st.sampled_from(["", "drained"]),
    ),
    st.builds(e.WorkerLost, generation=GENERATIONS, node=NODES, reason=st.just("frozen")),
    st.builds(e.GenerationElastic, generation=GENERATIONS),
    st.builds(e.GenerationRegrouped, generation=GENERATIONS, step=st.integers(0, 9)),
    st.builds(e.RegroupFailed, generation=GENERATIONS, reason=st.just("a shard is gone")),
    st.builds(e.GenerationStumbled, generation=GENERATIONS),
    st.builds(e.WorkersStayed, generation=GENERATIONS, reason=st.just("disk full")),
    st.builds(e.NodeProbed, node=NODES, ok=st.booleans()),
    st.builds(e.GenerationStepping, generation=GENERATIONS, step=st.integers(1, 9), stall_s=st.floats(0, 9)),
    st.builds(e.CheckpointCommitted, generation=GENERATIONS, step=st.integers(1, 9), save_s=st.floats(0, 9)),
    st.builds(e.ScaleRequested, nodes=st.one_of(st.none(), st.integers(-1, 9))),
    st.builds(e.TimePassed),
)
USUAL = st.one_of(EVENTS, st.just("go on"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(USUAL, st.sampled_from([0.0, 0.5, 5.0, 40.0, 130.0])), max_size=40), st.booleans())
def test_the_invariants_hold_after_any_events(events: list[tuple[e.Event | str, float]], live: bool) -> None:
    state, now, open_gates = initial(policy(max_restarts=20, live=live)), 1000.0, 0
    first: list[e.Event] = [
        e.SupervisorStarted(epoch=1, base_job_id=BASE),
        e.AgentJoined(job_id=BASE, role="base", nodes=OF[BASE], incarnation="x"),
    ]
    for event, wait in [(x, 0.0) for x in first] + events:
        now += wait
        for one in likely(state) if isinstance(event, str) else (event,):
            after, actions = step(state, one, now)
            check(state, after, one, actions, now)
            opened = [x.generation for x in actions if isinstance(x, a.OpenGate | a.Regroup)]
            assert all(number >= open_gates for number in opened)
            open_gates = max([open_gates, *opened])
            state = after


def likely(state: object) -> tuple[e.Event, ...]:
    """What obedient workers would say next, so that the random walk gets somewhere."""
    following = getattr(state, "next", None)
    live = getattr(state, "live", None)
    if live is not None and (live.drain_at is not None or live.killed_at is not None):
        return tuple(e.NodeEnded(generation=live.number, node=n, said="drained") for n in live.nodes)
    if following is not None:
        return tuple(e.NodeReady(generation=following.number, node=n) for n in following.nodes)
    if live is not None:
        return (
            e.GenerationElastic(generation=live.number),
            e.GenerationRegrouped(generation=live.number, step=1),
            e.GenerationStepping(generation=live.number, step=1, stall_s=1.0),
        )
    return (e.TimePassed(),)
