"""The decision machine: `step(state, event, now) -> (state, actions)`. Pure: no clock, no I/O, no torch.

First the fact is taken into the state, then the rules look at the state as it is now, again and again until they have
nothing more to say. What it never does: act on an unknown, have two generations with an open gate, open a gate below
the smallest allowed size, cancel the base job, leave a final phase.
A `TimePassed` that orders nothing changes nothing, so such events need not be kept.
"""

from __future__ import annotations

from typing import assert_never

from slurm_elastic.machine import joining, regrouping, slurm_view, standby, working
from slurm_elastic.machine.actions import Action
from slurm_elastic.machine.capacity import tend
from slurm_elastic.machine.ending import end, notice_of_the_base
from slurm_elastic.machine.events import (
    AgentJoined,
    AgentLost,
    CheckpointCommitted,
    CompanionRefused,
    CompanionSubmitted,
    Event,
    GenerationElastic,
    GenerationRegrouped,
    GenerationStepping,
    GenerationStumbled,
    JobsSeen,
    NodeEnded,
    NodeProbed,
    NodeReady,
    NoticeReceived,
    RegroupFailed,
    ScaleRequested,
    SlurmSilent,
    StopRequested,
    SupervisorStarted,
    TimePassed,
    WorkerLost,
    WorkersStayed,
)
from slurm_elastic.machine.growth import grow
from slurm_elastic.machine.losses import kill_what_does_not_end, kill_what_lost_a_member
from slurm_elastic.machine.planning import plan
from slurm_elastic.machine.state import Phase, State
from slurm_elastic.machine.transitions import (
    check_next,
    drain_when_next_is_ready,
    open_gate,
    pause_for_want_of_nodes,
    retire_live,
    workers_stayed,
)
from slurm_elastic.machine.turn import Turn

RULES = (
    notice_of_the_base,
    regrouping.go_on_without_the_lost,
    regrouping.go_on_after_a_stumble,
    regrouping.give_up,
    regrouping.finish_early,
    kill_what_lost_a_member,
    kill_what_does_not_end,
    retire_live,
    check_next,
    end,
    pause_for_want_of_nodes,
    plan,
    grow,
    regrouping.part_with_the_departing,
    standby.regroup_when_ready,
    drain_when_next_is_ready,
    open_gate,
    tend,
)
MOST_ROUNDS = 8


def step(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The state after `event`, and what is to be done, in order. The same object back when nothing changed."""
    if state.over and not isinstance(event, SupervisorStarted):
        return state, ()
    turn = Turn(state, now)
    take_in(turn, event)
    if not isinstance(event, SlurmSilent):
        _decide(turn)
        _name_the_phase(turn)
    if turn.state == state or (isinstance(event, TimePassed) and not turn.actions):
        return state, tuple(turn.actions)
    return turn.state, tuple(turn.actions)


def _decide(turn: Turn) -> None:
    for _ in range(MOST_ROUNDS):
        before = turn.state
        for rule in RULES:
            if turn.state.over:
                return
            rule(turn)
        if turn.state == before:
            return


def take_in(turn: Turn, event: Event) -> None:
    """What the event says becomes part of the state. Few facts are answered at once; the rules do the rest."""
    match event:
        case SupervisorStarted():
            joining.supervisor_started(turn, event)
        case AgentJoined():
            joining.agent_joined(turn, event)
        case AgentLost():
            joining.agent_lost(turn, event)
        case NoticeReceived():
            slurm_view.notice(turn, event)
        case JobsSeen():
            slurm_view.jobs_seen(turn, event)
        case SlurmSilent():
            slurm_view.slurm_silent(turn, event)
        case CompanionSubmitted():
            slurm_view.companion_submitted(turn, event)
        case CompanionRefused():
            slurm_view.companion_refused(turn, event)
        case NodeReady():
            working.node_ready(turn, event)
        case NodeEnded():
            working.node_ended(turn, event)
        case WorkerLost():
            working.worker_lost(turn, event)
        case GenerationElastic():
            working.elastic(turn, event)
        case GenerationRegrouped():
            working.regrouped(turn, event)
        case RegroupFailed():
            working.regroup_failed(turn, event)
        case GenerationStumbled():
            working.stumbled(turn, event)
        case WorkersStayed():
            workers_stayed(turn, event)
        case NodeProbed():
            working.node_probed(turn, event)
        case GenerationStepping():
            working.stepping(turn, event)
        case CheckpointCommitted():
            working.checkpoint_committed(turn, event)
        case ScaleRequested():
            _scale(turn, event)
        case StopRequested():
            ending = turn.state.ending or event.reason or "asked by the user"
            turn.change(ending=ending, stop_asked=True, hold_until=0.0)
        case TimePassed():
            pass
        case _:
            assert_never(event)


def _scale(turn: Turn, event: ScaleRequested) -> None:
    policy = turn.policy
    wanted = None if event.nodes is None else max(policy.min_nodes, min(policy.max_nodes, event.nodes))
    turn.change(wanted=wanted, asked=True, submit_blocked="", submit_until=0.0, grow_until=0.0, hold_until=0.0)
    if event.nodes is not None and turn.state.wanted_nodes != event.nodes:
        sizes = ", ".join(str(size) for size in policy.allowed_nodes)
        turn.change(reason=f"asked for {event.nodes} nodes, takes {turn.state.wanted_nodes}: allowed are {sizes}")


def _name_the_phase(turn: Turn) -> None:
    if not turn.state.over:
        phase = phase_of(turn.state)
        if phase != turn.state.phase:
            turn.change(phase=phase)


def phase_of(state: State) -> Phase:
    live = state.live
    if live is not None and live.killed_at is None:
        return "training" if live.drain_at is None else "draining"
    return "launching" if state.next is not None else "waiting"
