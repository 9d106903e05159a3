"""Orders of the decision machine, in the imperative. Whoever carries them out must tolerate a repeat."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", omit_defaults=True):
    """Base of all actions."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a generation; its position in `members` is its node_rank."""

    node: str
    job_id: int
    launch: int = 0  # number of the step that holds its workers; 0: the generation's own


class SubmitCompanion(Order, frozen=True, kw_only=True, tag="submit_companion"):
    """Submit one companion job of `nodes` nodes. Look `token` up first: a repeat must not submit twice."""

    token: str
    nodes: int


class CancelJob(Order, frozen=True, kw_only=True, tag="cancel_job"):
    """`scancel` a companion (never the base job)."""

    job_id: int
    reason: str


class LaunchWorkers(Order, frozen=True, kw_only=True, tag="launch_workers"):
    """Start the workers of `generation` on these nodes, through the agents of their jobs.

    They import what they need and wait at the gate: no rank, no process group, no GPU memory yet. `standby`: they
    pass the gate at once, build their model and wait for a seat in the generation that trains.
    """

    generation: int
    members: tuple[Member, ...]  # only the nodes to be launched, in any order
    standby: bool = False


class OpenGate(Order, frozen=True, kw_only=True, tag="open_gate"):
    """Give the waiting workers of `generation` their ranks (by order of `members`) and let them train.

    All of them resume from the newest loadable checkpoint, which the supervisor picks.
    """

    generation: int
    members: tuple[Member, ...]


class Regroup(Order, frozen=True, kw_only=True, tag="regroup"):
    """Let running workers become `generation` in place: ranks by order of `members`, all with their launches.

    `departing` hand over what only they hold, then leave. From now on this is the live generation.
    """

    generation: int
    members: tuple[Member, ...]
    departing: tuple[Member, ...] = ()
    before: int = 0  # the last generation that was complete
    reason: str = ""
    deadline: float | None = None  # when departing workers are gone
    planned: bool = True  # false: somebody was lost, there is no boundary to wait for


class DrainWorkers(Order, frozen=True, kw_only=True, tag="drain_workers"):
    """Ask the workers of `generation` to agree on a boundary, stop there, save if told to, and exit.

    `may_stay`: nobody takes the nodes: where the save fails they train on, and WorkersStayed is told.
    """

    generation: int
    reason: str
    save: bool = True
    deadline: float | None = None
    may_stay: bool = False


class KillWorkers(Order, frozen=True, kw_only=True, tag="kill_workers"):
    """End what is left of `generation` on these nodes, descendants too. Empty `nodes`: everywhere.

    `alone`: only this generation; older ones on the same nodes go on (a standby is given up while the old one trains).
    """

    generation: int
    nodes: tuple[str, ...] = ()
    reason: str = ""
    alone: bool = False


class ProbeNode(Order, frozen=True, kw_only=True, tag="probe_node"):
    """Run a trivial step on a suspect node; answer with NodeProbed."""

    job_id: int
    node: str


class ReleaseAllocation(Order, frozen=True, kw_only=True, tag="release_allocation"):
    """Tell this job's agent to end (its workers have ended, or are killed first), so that the job ends."""

    job_id: int
    reason: str


class RecordTransition(Order, frozen=True, kw_only=True, tag="record_transition"):
    """A transition is complete (or, with kind "wait", training pauses for want of nodes). For people."""

    kind: str  # shrink | grow | replace | restart | start | wait
    mode: str  # relaunch | live
    reason: str
    from_workers: int
    to_workers: int
    generation: int
    stall_s: float = 0.0
    steps_lost: int = 0
    planned: bool = True


class Finish(Order, frozen=True, kw_only=True, tag="finish"):
    """The run is over and succeeded: write DONE, release everything, end with exit code 0."""

    reason: str


class Stop(Order, frozen=True, kw_only=True, tag="stop"):
    """The run ends for now, saved, and can be resumed: release everything, end with exit code 0.

    `requeue`: nobody asked for it, Slurm takes the base job. If it is preempted it is to come back by itself.
    """

    reason: str
    requeue: bool = False


class GiveUp(Order, frozen=True, kw_only=True, tag="give_up"):
    """The run cannot go on: release everything, end with exit code 1, say why."""

    reason: str


Action = (
    SubmitCompanion
    | CancelJob
    | LaunchWorkers
    | OpenGate
    | Regroup
    | DrainWorkers
    | KillWorkers
    | ProbeNode
    | ReleaseAllocation
    | RecordTransition
    | Finish
    | Stop
    | GiveUp
)
