"""Facts about supervisors and agents: who is there, who is silent, and what each brings along."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.machine.actions import (
    CancelJob,
    DrainWorkers,
    Finish,
    GiveUp,
    KillWorkers,
    LaunchWorkers,
    ReleaseAllocation,
    SubmitCompanion,
)
from slurm_elastic.machine.ending import stop_order
from slurm_elastic.machine.events import AgentJoined, AgentLost, StepHeld, SupervisorStarted
from slurm_elastic.machine.nodes import earliest_deadline
from slurm_elastic.machine.regrouping import regroup_order
from slurm_elastic.machine.state import Allocation, Vanished
from slurm_elastic.machine.transitions import is_taken
from slurm_elastic.machine.turn import Turn

LATE_END_S = 3.0  # how long the message about an ended step may come after its agent


def supervisor_started(turn: Turn, event: SupervisorStarted) -> None:
    """All connections are unknown; what was ordered and may not have been carried out is ordered again."""
    state = turn.state
    same_job = (event.base_job_id, event.restart_count) == (state.base_job_id, state.base_restart_count)
    if state.phase == "finished" or (state.over and same_job):
        turn.change(epoch=event.epoch)
        _end_again(turn)
        return
    if state.over:
        same_id = event.base_job_id == state.base_job_id
        _begin_anew(turn, "the base job came back" if same_id else "the run was submitted again")
    if not same_job:
        turn.change(allocations=tuple(a for a in turn.state.allocations if a.role != "base"))
        if event.base_job_id != state.base_job_id or not state.stop_asked:
            # the job before was gone before the run had ended: what it was about to do is nobody's wish any more
            turn.change(ending="", stop_asked=False, hold_until=0.0)
    turn.change(
        epoch=event.epoch,
        base_job_id=event.base_job_id,
        base_restart_count=event.restart_count,
        started_at=turn.now,
        best_step=max(state.best_step, event.resume_step),
        slurm_silent_since=None,
        submit_blocked="",
        allocations=tuple(_unheard(a, turn.now, event.rejoin_s) for a in turn.state.allocations),
    )
    _order_again(turn)


def _begin_anew(turn: Turn, why: str) -> None:
    """The run starts again after it had stopped. Numbers and tokens go on; old companions were given up."""
    old = (a for a in turn.state.allocations if a.role != "base")
    turn.change(
        phase="waiting",
        reason=why,
        ending="",
        stop_asked=False,
        failures=0,
        first_failure="",
        failed_generation=0,
        cause=why,
        cause_planned=True,
        live=None,
        next=None,
        before=(),
        paused=False,
        submissions=(),
        suspects=(),
        allocations=tuple(replace(a, released_at=a.released_at or turn.now) for a in old),
    )


def _end_again(turn: Turn) -> None:
    """The supervisor before us may have died before it ended the run."""
    match turn.state.phase:
        case "finished":
            turn.order(Finish(reason=turn.state.reason))
        case "stopped":
            turn.order(stop_order(turn.state))
        case _:
            turn.order(GiveUp(reason=turn.state.reason))


def _unheard(allocation: Allocation, now: float, rejoin_s: float) -> Allocation:
    if allocation.contact != "joined" and not (allocation.contact == "silent" and allocation.rejoin_by is not None):
        return allocation
    return replace(allocation, contact="silent", silent_since=now, rejoin_by=now + rejoin_s)


def _order_again(turn: Turn) -> None:
    for submission in turn.state.submissions:
        turn.order(SubmitCompanion(token=submission.token, nodes=turn.policy.companion_nodes))
    turn.change(
        submissions=tuple(replace(s, ordered_at=turn.now) for s in turn.state.submissions),
        suspects=tuple(replace(s, asked_at=None) for s in turn.state.suspects),
    )
    for allocation in turn.state.allocations:
        if allocation.released_at is not None and allocation.role != "base":
            turn.order(CancelJob(job_id=allocation.job_id, reason="released by the supervisor before this one"))
    if turn.state.live is not None and turn.state.live.regrouping and turn.state.live.killed_at is None:
        turn.order(regroup_order(turn.state.live, turn.state))


def agent_joined(turn: Turn, event: AgentJoined) -> None:
    """Take an allocation in, or back. Its report of running steps replaces what we believed."""
    if event.role == "base" and (event.job_id, event.restart_count) != (
        turn.state.base_job_id,
        turn.state.base_restart_count,
    ):
        return  # a ghost of an earlier start of the base job: the supervisor fences it
    known = turn.state.allocation(event.job_id)
    if known is None:
        known = Allocation(job_id=event.job_id, role=event.role, known_at=turn.now)
        turn.add(known)
    if known.joined_at is None and event.role != "base":
        turn.change(submit_level=0)
    turn.change_allocation(
        event.job_id,
        contact="joined",
        nodes=tuple(node for node in event.nodes if node not in known.removed),
        qos=event.qos or known.qos,
        incarnation=event.incarnation,
        joined_at=turn.now if known.joined_at is None else known.joined_at,
        silent_since=None,
        rejoin_by=None,
        steps=event.steps,
        kills=0,
    )
    if known.released_at is not None:
        turn.order(ReleaseAllocation(job_id=event.job_id, reason="this allocation was given up"))
        return
    if known.contact == "silent" or known.incarnation != event.incarnation:
        _probe_again(turn, event)
    _end_strangers(turn, event)
    _account_for_live(turn, known, event)
    _launch_again(turn, event)


def _probe_again(turn: Turn, event: AgentJoined) -> None:
    """What an agent was asked before it went away is not answered any more."""
    suspects = turn.state.suspects
    turn.change(suspects=tuple(replace(s, asked_at=None) if s.job_id == event.job_id else s for s in suspects))


def _end_strangers(turn: Turn, event: AgentJoined) -> None:
    """Workers of a generation that is over write nothing more and leave."""
    live, following = turn.state.live, turn.state.next
    for step in event.steps:
        is_live = live is not None and live.has(step.generation, step.node) and live.killed_at is None
        is_next = following is not None and step.generation == following.number and step.node in following.nodes
        if not is_live and not is_next:
            reason = "its generation is over"
            turn.order(KillWorkers(generation=step.generation, nodes=(step.node,), reason=reason, alone=True))
            turn.change_allocation(event.job_id, killed_at=turn.now)


def _account_for_live(turn: Turn, known: Allocation, event: AgentJoined) -> None:
    """Members of the live generation that this agent should have, and does not."""
    live = turn.state.live
    if live is None:
        return
    steps = {(step.generation, step.node) for step in event.steps}
    held = {m.node for m in live.everyone if (live.launch_of(m), m.node) in steps}
    same_agent = event.incarnation == known.incarnation
    missing = tuple(
        Vanished(node=m.node, until=turn.now + (LATE_END_S if same_agent else 0.0))
        for m in live.everyone
        if m.job_id == event.job_id and m.node not in held and live.end_of(m.node) is None
    )
    turn.change_live(vanished=tuple(v for v in live.vanished if v.node not in held) + missing)
    if live.drain_at is not None and live.killed_at is None and live.drain_at < turn.state.started_at and held:
        deadline = earliest_deadline(turn.state)
        may_stay = deadline is None and not is_taken(turn.state)
        turn.order(DrainWorkers(generation=live.number, reason=turn.state.cause, deadline=deadline, may_stay=may_stay))


def _launch_again(turn: Turn, event: AgentJoined) -> None:
    following = turn.state.next
    if following is None:
        return
    held = {step.node for step in event.steps if step.generation == following.number}
    absent = tuple(m for m in following.members if m.job_id == event.job_id and m.node not in held)
    there = turn.state.allocation(event.job_id)
    nodes = () if there is None else there.nodes
    absent = tuple(m for m in absent if m.node in nodes and following.end_of(m.node) is None)
    if absent:
        turn.order(LaunchWorkers(generation=following.number, members=absent, standby=following.standby))
        turn.hold(event.job_id, *(StepHeld(generation=following.number, node=m.node) for m in absent))
        turn.change_next(ready=tuple(n for n in following.ready if n not in {m.node for m in absent}))


def agent_lost(turn: Turn, event: AgentLost) -> None:
    known = turn.state.allocation(event.job_id)
    if known is not None and (known.contact == "joined" or known.rejoin_by is not None):
        since = known.silent_since if known.contact == "silent" else turn.now
        turn.change_allocation(event.job_id, contact="silent", silent_since=since, rejoin_by=None)
