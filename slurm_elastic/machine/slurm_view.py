"""Facts from Slurm: what it says about our jobs, what it refuses, and when it says nothing.

Silence is no fact: nothing is decided from it. A job that is missing from one answer may have been submitted while
Slurm was answering, so only a second answer in a row makes it gone.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from slurm_elastic.machine.events import (
    CompanionRefused,
    CompanionSubmitted,
    JobRecord,
    JobsSeen,
    NoticeReceived,
    SlurmSilent,
)
from slurm_elastic.machine.losses import parked_went
from slurm_elastic.machine.state import Allocation
from slurm_elastic.machine.turn import Turn

TERMINAL = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
    | {"DEADLINE", "OUT_OF_MEMORY", "REVOKED", "GONE"}
)
FROZEN = frozenset({"SUSPENDED", "STOPPED"})
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
RUNS = frozenset({"RUNNING", "SIGNALING", "CONFIGURING", "RESIZING", "STAGE_OUT"})
FRESH_S = 10.0  # a job younger than this may be missing from an answer that was on its way
GRACE_HORIZON_S = 3600.0  # PreemptTime with an end later than this is a stale record, not a notice
REFUSED_FIRST_S = 5.0
PREEMPTED = "slurm record: preempted"
TOKEN = re.compile(r"companion-\d{5,}$")


def jobs_seen(turn: Turn, event: JobsSeen) -> None:
    if turn.state.slurm_silent_since is not None:  # whatever failed meanwhile may work now: no need to wait
        suspects = tuple(replace(s, asked_at=None, not_before=0.0) for s in turn.state.suspects)
        turn.change(slurm_silent_since=None, suspects=suspects)
    seen = {record.job_id: record for record in event.jobs}
    for record in event.jobs:
        _adopt(turn, record)
    for allocation in turn.state.allocations:
        record_of_it = seen.get(allocation.job_id)
        if record_of_it is None:
            _not_seen(turn, allocation)
        else:
            _seen(turn, allocation, record_of_it)


def slurm_silent(turn: Turn, event: SlurmSilent) -> None:
    if turn.state.slurm_silent_since is None:
        turn.change(slurm_silent_since=turn.now)


def _adopt(turn: Turn, record: JobRecord) -> None:
    """A companion of ours whose submission was never confirmed to us."""
    found = TOKEN.search(record.token)
    if found is None or record.state in TERMINAL or record.job_id == turn.state.base_job_id:
        return
    if turn.state.allocation(record.job_id) is None and record.state != "COMPLETING":
        companion_submitted(turn, CompanionSubmitted(token=found.group(), job_id=record.job_id))


def _not_seen(turn: Turn, allocation: Allocation) -> None:
    if allocation.role == "base" or turn.now - allocation.known_at < FRESH_S:
        return
    if allocation.missing >= 1:
        job_gone(turn, allocation)
    else:
        turn.change_allocation(allocation.job_id, missing=1)


def _seen(turn: Turn, allocation: Allocation, record: JobRecord) -> None:
    if record.state in TERMINAL:
        if allocation.role != "base":
            job_gone(turn, allocation)
        return
    turn.change_allocation(allocation.job_id, **_news(allocation, record))
    deadline = _death(turn, allocation, record)
    if deadline is not None:
        notice(turn, NoticeReceived(job_id=record.job_id, source=deadline[0], deadline=deadline[1]))


def _news(allocation: Allocation, record: JobRecord) -> dict[str, Any]:
    news: dict[str, Any] = {"missing": 0, "end_time": record.end_time, "suspended": record.state in FROZEN}
    early = allocation.contact in ("pending", "starting")
    if early and record.state in RUNS:
        news |= {"contact": "starting", "nodes": record.nodes or allocation.nodes}
    elif early and record.state in WAITING:
        news |= {"contact": "pending"}
    elif not early and record.nodes and record.state in RUNS:
        there = frozenset(record.nodes)
        gone = tuple(node for node in allocation.nodes if node not in there)
        kept = tuple(node for node in allocation.nodes if node in there)
        steps = tuple(step for step in allocation.steps if step.node not in gone)
        news |= {"nodes": kept, "removed": allocation.removed + gone, "steps": steps}
    return news


def _death(turn: Turn, allocation: Allocation, record: JobRecord) -> tuple[str, float | None] | None:
    """(source, deadline) when the record says that this job is about to end."""
    if allocation.contact in ("pending", "starting"):
        return None
    if record.state == "COMPLETING" and allocation.role != "base":
        return "slurm record: completing", turn.now
    if record.end_time is None or record.state not in RUNS:
        return None
    left_s = record.end_time - turn.now
    if record.preempt_time is not None and left_s <= GRACE_HORIZON_S:
        return PREEMPTED, record.end_time
    policy = turn.policy
    if record.preempt_time is None and left_s <= policy.graceful_shutdown_timeout + policy.lead + 2 * policy.poll:
        return "time limit", record.end_time
    return None


def notice(turn: Turn, event: NoticeReceived) -> None:
    """The first one counts as the notice; later ones can only bring the deadline forward."""
    known = turn.state.allocation(event.job_id)
    if known is None:
        return
    if not known.leaving and known.released_at is None:
        parked_went(turn, known)
    words = known.notice or event.source
    if event.source == PREEMPTED and "preempted" not in words:
        words = f"{words}, preempted"
        _say_better(turn, known, words)
    deadlines = [d for d in (known.deadline, event.deadline) if d is not None]
    turn.change_allocation(
        event.job_id,
        notice=words,
        noticed_at=turn.now if known.noticed_at is None else known.noticed_at,
        deadline=min(deadlines, default=None),
    )


def _say_better(turn: Turn, known: Allocation, words: str) -> None:
    """A signal came first; now Slurm's record says why. What is being done about it is to be told with that word."""

    def better(reason: str) -> str:
        about = reason.startswith(f"job {known.job_id} with ")
        return reason.replace(f"({known.notice})", f"({words})", 1) if about else reason

    turn.change(reason=better(turn.state.reason), cause=better(turn.state.cause))
    if turn.state.next is not None:
        turn.change_next(reason=better(turn.state.next.reason))
    if turn.state.live is not None and not turn.state.live.recorded:
        turn.change_live(reason=better(turn.state.live.reason))


def job_gone(turn: Turn, allocation: Allocation) -> None:
    """Slurm says that this companion is over, whoever ended it."""
    wanted_gone = allocation.released_at is not None and not allocation.leaving
    if allocation.joined_at is not None and not wanted_gone:
        turn.change(
            companion_ends=turn.state.companion_ends + 1,
            companion_seconds=turn.state.companion_seconds + turn.now - allocation.joined_at,
        )
        if not allocation.leaving:
            parked_went(turn, allocation)
    elif not wanted_gone:
        level = turn.state.submit_level + 1
        turn.change(
            never_joined=turn.state.never_joined + 1,
            submit_level=level,
            submit_until=turn.now + back_off(turn, turn.policy.scale_up_snooze_time, level),
        )
    turn.drop(allocation.job_id)


def back_off(turn: Turn, first_s: float, level: int) -> float:
    """first_s, twice that, four times that, ... at most the longest snooze."""
    return float(min(first_s * 2 ** min(level - 1, 30), turn.policy.longest_snooze))


def companion_submitted(turn: Turn, event: CompanionSubmitted) -> None:
    turn.change(submissions=tuple(s for s in turn.state.submissions if s.token != event.token))
    known = turn.state.allocation(event.job_id)
    if known is None:
        turn.add(Allocation(job_id=event.job_id, role="companion", token=event.token, known_at=turn.now))
    elif not known.token:
        turn.change_allocation(event.job_id, token=event.token)


def companion_refused(turn: Turn, event: CompanionRefused) -> None:
    turn.change(submissions=tuple(s for s in turn.state.submissions if s.token != event.token))
    if event.permanent:
        turn.change(submit_blocked=event.reason)
        return
    level = turn.state.submit_level + 1
    turn.change(submit_level=level, submit_until=turn.now + back_off(turn, REFUSED_FIRST_S, level))
