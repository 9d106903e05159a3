"""status.json: how a run is now. Written every second by the supervisor, read by `slurm-elastic status`.

`status_of` is pure: the decision machine's state and the supervisor's figures in, the whole status out.
The JSON keeps its keys from release to release; new ones may be added. docs/cli.md lists them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.machine.actions import RecordTransition
from slurm_elastic.machine.state import Allocation, State
from slurm_elastic.observe.problems import Problem, problems_of
from slurm_elastic.rundir import replace_text

VERSION = 1
OVER = ("finished", "stopped", "failed")
STALE_S = 5.0  # a report older than this: the supervisor is away


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of the status."""


class SupervisorStatus(Shown, frozen=True, kw_only=True):
    epoch: int
    host: str
    pid: int
    time: float  # when this was written
    started_at: float


class CheckpointStatus(Shown, frozen=True, kw_only=True):
    step: int
    time: float  # when it became public
    name: str


class Figures(Shown, frozen=True, kw_only=True):
    """What the supervisor knows beside the machine's state. Times are Unix seconds; 0 and None: not known."""

    run: str  # its name
    run_dir: str
    now: float
    supervisor: SupervisorStatus
    step: int = 0
    total_steps: int = 0
    step_time: float = 0.0  # when the last step was committed
    steps_per_s: float = 0.0
    epoch_of_data: float = 0.0
    loss: float | None = None
    lr: float | None = None
    checkpoint: CheckpointStatus | None = None
    last_transition_at: float | None = None
    refused_peers: dict[str, int] = {}  # address -> connections refused
    warnings: tuple[str, ...] = ()


class JobStatus(Shown, frozen=True, kw_only=True):
    """One Slurm job of the run and its nodes."""

    job_id: int
    role: str  # base | companion
    qos: str
    status: str  # pending | starting | joined | leaving | silent | suspended
    nodes: tuple[str, ...]
    training: tuple[str, ...]  # those of its nodes that train now
    notice: str = ""  # who said that it will go away
    notice_deadline: float | None = None  # and when


class TransitionStatus(Shown, frozen=True, kw_only=True):
    time: float | None
    kind: str
    mode: str
    reason: str
    generation: int
    from_workers: int
    to_workers: int
    stall_s: float
    steps_lost: int
    planned: bool


class Status(Shown, frozen=True, kw_only=True):
    version: int = VERSION
    run: str
    run_dir: str
    state: str  # waiting | launching | training | draining | finished | stopped | failed
    reason: str
    generation: int
    standby: int | None  # generation whose workers warm up, if any
    mode: str = ""  # how the next change will be made: live | relaunch; "" when nothing trains
    nodes: int  # that train now
    workers: int
    wanted_nodes: int
    min_nodes: int
    max_nodes: int
    jobs: tuple[JobStatus, ...]
    pending_companions: int
    step: int
    total_steps: int
    steps_per_s: float
    epoch_of_data: float
    loss: float | None
    lr: float | None
    checkpoint: CheckpointStatus | None
    last_transition: TransitionStatus | None
    problems: tuple[Problem, ...]
    supervisor: SupervisorStatus


def status_of(state: State, figures: Figures) -> Status:
    """The status of a run at `figures.now`."""
    is_over = state.phase in OVER  # then nothing is left, whatever the machine remembers of it
    members = set() if is_over else {member.node for member in state.members}
    allocations = () if is_over else tuple(a for a in state.allocations if a.released_at is None)
    return Status(
        run=figures.run,
        run_dir=figures.run_dir,
        state=state.phase,
        reason=state.reason,
        generation=state.generation,
        standby=state.next.number if state.next and not is_over else None,
        mode=_mode(state),
        nodes=len(members),
        workers=len(members) * state.policy.workers_per_node,
        wanted_nodes=state.wanted_nodes,
        min_nodes=state.policy.min_nodes,
        max_nodes=state.policy.max_nodes,
        jobs=tuple(_job(allocation, members) for allocation in allocations),
        pending_companions=0 if is_over else _pending(state),
        step=figures.step,
        total_steps=figures.total_steps,
        steps_per_s=round(figures.steps_per_s, 4),
        epoch_of_data=round(figures.epoch_of_data, 6),
        loss=figures.loss,
        lr=figures.lr,
        checkpoint=figures.checkpoint,
        last_transition=_transition(state.last_transition, figures.last_transition_at),
        problems=problems_of(state, figures),
        supervisor=figures.supervisor,
    )


def write_status(path: Path, status: Status) -> None:
    """Readers see the old one or the new one. Not fsynced: it is true for a second only. Raises OSError."""
    replace_text(path, msgspec.json.encode(status).decode() + "\n", durable=False)


def read_status(path: Path) -> Status | None:
    """None when no supervisor has written one yet. Raises RunDirectoryError when it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise RunDirectoryError(
            f"cannot read {path}: {broken}", fix="is this run driven by another release of slurm-elastic?"
        ) from broken


def _mode(state: State) -> str:
    if state.live is None or state.phase in OVER:
        return ""
    return "live" if state.live.elastic and state.policy.live else "relaunch"


def _pending(state: State) -> int:
    return len(state.submissions) + sum(a.contact == "pending" for a in state.allocations)


def _job(allocation: Allocation, members: set[str]) -> JobStatus:
    return JobStatus(
        job_id=allocation.job_id,
        role=allocation.role,
        qos=allocation.qos,
        status="suspended" if allocation.suspended else allocation.status,
        nodes=allocation.nodes,
        training=tuple(node for node in allocation.nodes if node in members),
        notice=allocation.notice,
        notice_deadline=allocation.deadline,
    )


def _transition(done: RecordTransition | None, at: float | None) -> TransitionStatus | None:
    if done is None:
        return None
    return TransitionStatus(
        time=at,
        kind=done.kind,
        mode=done.mode,
        reason=done.reason,
        generation=done.generation,
        from_workers=done.from_workers,
        to_workers=done.to_workers,
        stall_s=done.stall_s,
        steps_lost=done.steps_lost,
        planned=done.planned,
    )
