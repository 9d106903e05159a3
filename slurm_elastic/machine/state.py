"""All that the decision machine knows about a run. Immutable; `step` makes the next one.

Times are Unix seconds. Only what was told by an event or ordered by an action is stored; what follows from it
(who is usable, what is a problem) is computed where it is needed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from slurm_elastic.machine.actions import Member, RecordTransition
from slurm_elastic.machine.events import NodeEnded, StepHeld
from slurm_elastic.machine.policy import Policy

Phase = Literal["waiting", "launching", "training", "draining", "finished", "stopped", "failed"]
Status = Literal["pending", "starting", "joined", "leaving", "silent"]
ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of the state."""


class Allocation(Value, frozen=True, kw_only=True):
    """The nodes of one Slurm job, and what is known of its agent."""

    job_id: int
    role: str  # "base" | "companion"
    contact: Literal["pending", "starting", "joined", "silent"] = "pending"
    nodes: tuple[str, ...] = ()
    qos: str = ""
    token: str = ""
    incarnation: str = ""
    known_at: float = 0.0
    joined_at: float | None = None  # first time
    silent_since: float | None = None
    rejoin_by: float | None = None  # the supervisor was restarted: silence until then means nothing
    suspended: bool = False
    missing: int = 0  # answers of Slurm in a row that did not name it
    end_time: float | None = None
    notice: str = ""  # source of the first notice
    noticed_at: float | None = None
    deadline: float | None = None
    released_at: float | None = None  # told to end, or cancelled
    removed: tuple[str, ...] = ()  # nodes that Slurm took out of the job
    steps: tuple[StepHeld, ...] = ()  # ordered or reported, not yet reported ended
    killed_at: float | None = None  # when leftovers on it were last ordered to end
    kills: int = 0

    @property
    def leaving(self) -> bool:
        return self.noticed_at is not None

    @property
    def status(self) -> Status:
        return "leaving" if self.leaving and self.contact == "joined" else self.contact

    def holds(self, generation: int, node: str) -> bool:
        return any(step.generation == generation and step.node == node for step in self.steps)


class Vanished(Value, frozen=True, kw_only=True):
    """An agent came back without this node's step; its message about the end may still be on the way until `until`."""

    node: str
    until: float


class Generation(Value, frozen=True, kw_only=True):
    """One numbered membership, from the launch of its workers to the end of the last of them."""

    number: int
    members: tuple[Member, ...]
    launched_at: float
    reason: str = ""
    planned: bool = True
    chosen: bool = False  # we could have left things as they were
    ready: tuple[str, ...] = ()
    failed: bool = False  # nodes of it did not start: one failure, however many they are
    opened_at: float | None = None
    kind: str = ""  # of the transition into it; set when its gate opens
    from_nodes: int = 0
    stepping: bool = False
    recorded: bool = False
    ended: tuple[NodeEnded, ...] = ()
    lost: tuple[str, ...] = ()  # nodes with a worker that gives no sign of life
    vanished: tuple[Vanished, ...] = ()
    drain_at: float | None = None
    drain_deadline: float | None = None
    killed_at: float | None = None

    standby: bool = False  # behind the gate: new nodes only, to join the live generation
    elastic: bool = False  # all its workers can regroup in place
    live: bool = False  # made by a regroup, not through the gate
    before: int = 0  # ... of this generation, the last one that was complete
    departing: tuple[Member, ...] = ()  # of the generation before: they hand over and leave
    regrouped_at: float | None = None
    broken: str = ""  # why it cannot regroup
    stumbled_at: float | None = None  # a collective failed, nobody knows why
    stumbles: int = 0  # regroups in a row because of that

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members)

    @property
    def everyone(self) -> tuple[Member, ...]:
        return self.members + self.departing

    @property
    def regrouping(self) -> bool:
        return self.live and self.regrouped_at is None

    def launch_of(self, member: Member) -> int:
        """Number of the step that holds this member's workers."""
        return member.launch or self.number

    def has(self, launch: int, node: str) -> bool:
        """Whether the step of `launch` on `node` is its own."""
        return launch == self.number or any(m.launch == launch and m.node == node for m in self.everyone)

    @property
    def well(self) -> bool:
        """It trains and nobody has asked it to stop."""
        return self.opened_at is not None and self.drain_at is None and self.killed_at is None

    def end_of(self, node: str) -> NodeEnded | None:
        return next((end for end in self.ended if end.node == node), None)


class Submission(Value, frozen=True, kw_only=True):
    """A companion that was ordered and whose job id we have not heard yet."""

    token: str
    ordered_at: float


class Suspect(Value, frozen=True, kw_only=True):
    """A node that must prove itself by a trivial step before it is used again."""

    node: str
    job_id: int
    reason: str
    asked_at: float | None = None
    not_before: float = 0.0
    tries: int = 0


class State(Value, frozen=True, kw_only=True):
    policy: Policy
    phase: Phase = "waiting"
    reason: str = "no supervisor yet"
    epoch: int = 0
    base_job_id: int = 0
    base_restart_count: int = 0
    started_at: float = 0.0  # of the supervisor
    last_number: int = 0
    live: Generation | None = None  # gate opened; may drain or be killed
    next: Generation | None = None  # behind the gate
    before: tuple[Member, ...] = ()  # members of the last generation that trained since the run began or came back
    paused: bool = False  # training waits for nodes, and that was said
    has_trained: bool = False  # ever
    cause: str = ""  # why a new generation is needed
    cause_planned: bool = True
    allocations: tuple[Allocation, ...] = ()  # in order of joining
    submissions: tuple[Submission, ...] = ()
    submitted: int = 0  # counts tokens
    suspects: tuple[Suspect, ...] = ()
    wanted: int | None = None  # asked by the user
    asked: bool = False  # ... and not reached yet
    ending: str = ""  # reason why the run saves and stops
    stop_asked: bool = False  # by the user
    chosen_at: float | None = None  # last transition that we chose
    hold_until: float = 0.0  # no transition that we choose before this: the last one could not save
    parked_since: float | None = None
    surplus_since: float | None = None
    lost_at: float | None = None
    grown_at: float | None = None
    grow_level: int = 0
    grow_until: float = 0.0
    submit_level: int = 0
    submit_until: float = 0.0
    submit_blocked: str = ""  # Slurm will never accept a companion: its words
    never_joined: int = 0
    failures: int = 0  # in a row, without a new committed step
    first_failure: str = ""  # of the last generation that failed: one line, then the end of its log
    failed_generation: int = 0
    best_step: int = 0
    companion_ends: int = 0
    companion_seconds: float = 0.0
    stall_s: float | None = None
    save_s: float | None = None
    slurm_silent_since: float | None = None
    last_transition: RecordTransition | None = None

    @property
    def generation(self) -> int:
        """The number that counts now: of the live generation, else the newest."""
        return self.live.number if self.live is not None else self.last_number

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the live generation by node_rank; () when none trains."""
        return self.live.members if self.live is not None else ()

    @property
    def wanted_nodes(self) -> int:
        """The size to aim for: what the user asked, else all that the policy allows."""
        return self.policy.size_for(self.policy.max_nodes if self.wanted is None else self.wanted)

    @property
    def snooze_until(self) -> float | None:
        """No growth before this time, if it lies ahead; the caller compares with its clock."""
        return max(self.grow_until, self.submit_until) or None

    @property
    def over(self) -> bool:
        return self.phase in ENDED

    def allocation(self, job_id: int) -> Allocation | None:
        return next((a for a in self.allocations if a.job_id == job_id), None)

    def token(self, count: int) -> str:
        """Submit token of the `count`-th companion of this run, the same after any replay."""
        return f"companion-{count:05d}"


def initial(policy: Policy) -> State:
    return State(policy=policy)
