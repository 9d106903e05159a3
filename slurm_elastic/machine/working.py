"""Facts about workers: ready, ended, frozen, stepping, saved; and about nodes that were asked to prove themselves."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.machine.actions import OpenGate, RecordTransition
from slurm_elastic.machine.events import (
    CheckpointCommitted,
    GenerationElastic,
    GenerationRegrouped,
    GenerationStepping,
    GenerationStumbled,
    NodeEnded,
    NodeProbed,
    NodeReady,
    RegroupFailed,
    WorkerLost,
)
from slurm_elastic.machine.state import Generation
from slurm_elastic.machine.turn import Turn

SAID_CLEAN = frozenset({"drained", "finished", "stopped"})
PROBE_AGAIN_S = 15.0


def is_clean(end: NodeEnded) -> bool:
    """It left on purpose. What it said counts more than a crash while it was being torn down."""
    return end.said in SAID_CLEAN or (end.exit_code == 0 and end.signal == 0)


def node_ready(turn: Turn, event: NodeReady) -> None:
    state = turn.state
    if state.next is not None and state.next.number == event.generation:
        if event.node in state.next.nodes and event.node not in state.next.ready:
            turn.change_next(ready=(*state.next.ready, event.node))
        return
    live = state.live
    if live is not None and live.number == event.generation and event.node in live.nodes and live.killed_at is None:
        # the gate was ordered open, yet they wait: the order was lost with the supervisor that should give it
        turn.order(OpenGate(generation=live.number, members=live.members))


def node_ended(turn: Turn, event: NodeEnded) -> None:
    turn.release_step(event.generation, event.node)
    generation = turn.generation_of(event.generation, event.node)
    if generation is None or _has_no(generation, event.node) or generation.end_of(event.node) is not None:
        return
    if _was_told_to_end(turn, generation, event):
        event = replace(event, said="drained")
    turn.change_generation(
        generation.number,
        ended=(*generation.ended, event),
        vanished=tuple(v for v in generation.vanished if v.node != event.node),
        ready=tuple(node for node in generation.ready if node != event.node),
    )
    if not is_clean(event) and generation.killed_at is None:
        end_of_log = event.detail.partition("\n")[2]
        failed_first(turn, generation.number, f"{describe(event)}\n{end_of_log}".rstrip())
    if generation.opened_at is None:
        job_id = next(m.job_id for m in generation.members if m.node == event.node)
        turn.suspect(event.node, job_id, f"its workers ended before they trained: {describe(event)}")


def _has_no(generation: Generation, node: str) -> bool:
    return all(member.node != node for member in generation.everyone)


def _was_told_to_end(turn: Turn, generation: Generation, end: NodeEnded) -> bool:
    """A script that never saved through us knows no boundary: it is drained by a signal, and dies of it."""
    by_signal = end.signal != 0 or end.exit_code >= 128
    return generation.drain_at is not None and not end.said and by_signal and turn.state.best_step == 0


def failed_first(turn: Turn, generation: int, words: str) -> None:
    """Of each generation only the first failure counts: the others follow from it."""
    if generation > turn.state.failed_generation:
        turn.change(first_failure=words, failed_generation=generation)


def describe(end: NodeEnded) -> str:
    """One line. The first of `detail` names the worker, its last words and its log."""
    how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
    first = end.detail.partition("\n")[0]
    return f"workers on {end.node} ended with {how}" + (f": {first}" if first else "")


def worker_lost(turn: Turn, event: WorkerLost) -> None:
    generation = turn.generation_of(event.generation, event.node)
    if generation is None or _has_no(generation, event.node) or event.node in generation.lost:
        return
    if generation.end_of(event.node) is not None:
        return
    turn.change_generation(generation.number, lost=(*generation.lost, event.node))
    job_id = next(m.job_id for m in generation.everyone if m.node == event.node)
    turn.suspect(event.node, job_id, event.reason)
    failed_first(turn, generation.number, f"{event.node}: {event.reason}")


def node_probed(turn: Turn, event: NodeProbed) -> None:
    """A node that can run a step is used again; the others are asked later, less and less often.

    While the controller is away no step can start on any node: that says nothing about this one.
    """
    if event.ok:
        turn.change(suspects=tuple(s for s in turn.state.suspects if s.node != event.node))
        return
    counts = turn.state.slurm_silent_since is None
    turn.change(
        suspects=tuple(
            replace(
                s,
                asked_at=None,
                tries=s.tries + counts,
                not_before=turn.now + PROBE_AGAIN_S * 2 ** min(s.tries, 6),
                reason=event.detail or s.reason,
            )
            if s.node == event.node
            else s
            for s in turn.state.suspects
        )
    )


def stepping(turn: Turn, event: GenerationStepping) -> None:
    live = turn.state.live
    if live is None or live.number != event.generation or live.stepping:
        return
    turn.change_live(stepping=True)
    if live.regrouping:
        turn.change_live(regrouped_at=turn.now)
    if live.live and event.steps_lost == 0:  # the new committed step that a restart has to save first
        turn.change(failures=0)
    if live.planned and live.from_nodes and event.stall_s > 0:  # from nothing: nobody knows what waiting costs
        before = turn.state.stall_s
        turn.change(stall_s=event.stall_s if before is None else (before + event.stall_s) / 2)
    if not live.recorded:
        record(turn, live, event.stall_s, event.steps_lost)


def record(turn: Turn, live: Generation, stall_s: float = 0.0, steps_lost: int = 0) -> None:
    """The transition into `live` is complete."""
    per_node = turn.policy.workers_per_node
    done = RecordTransition(
        kind=live.kind,
        mode="live" if live.live else "relaunch",
        reason=live.reason,
        from_workers=live.from_nodes * per_node,
        to_workers=len(live.members) * per_node,
        generation=live.number,
        stall_s=stall_s,
        steps_lost=steps_lost,
        planned=live.planned,
    )
    turn.order(done)
    turn.change(last_transition=done, before=live.members, paused=False, has_trained=True)
    turn.change_live(recorded=True)


def elastic(turn: Turn, event: GenerationElastic) -> None:
    if turn.state.live is not None and turn.state.live.number == event.generation:
        turn.change_live(elastic=True)


def regrouped(turn: Turn, event: GenerationRegrouped) -> None:
    live = turn.state.live
    if live is not None and live.number == event.generation and live.regrouping:
        turn.change_live(regrouped_at=turn.now)


def regroup_failed(turn: Turn, event: RegroupFailed) -> None:
    live = turn.state.live
    if live is not None and live.number == event.generation and live.regrouping:
        turn.change_live(broken=live.broken or event.reason or "the workers could not regroup")


def stumbled(turn: Turn, event: GenerationStumbled) -> None:
    """Perhaps the loss is heard of later. Only the newest generation counts: who hangs in an older one is called."""
    live = turn.state.live
    if live is not None and live.number == event.generation and live.stumbled_at is None:
        turn.change_live(stumbled_at=turn.now)


def checkpoint_committed(turn: Turn, event: CheckpointCommitted) -> None:
    turn.change(hold_until=0.0)
    if event.save_s > 0:
        turn.change(save_s=max(event.save_s, 0.7 * (turn.state.save_s or 0.0)))
    if event.step > turn.state.best_step:
        turn.change(best_step=event.step, failures=0)
