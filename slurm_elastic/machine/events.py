"""Facts the decision machine is told, in the past tense. All are immutable and go into the journal as JSON.

Times are Unix seconds. `node` is a host name. An allocation is named by its Slurm job id.
"""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """Base of all events."""


class SupervisorStarted(Fact, frozen=True, kw_only=True, tag="supervisor_started"):
    """A supervisor took the run over: first start, restart after a crash, or requeue of the base job.

    All that was known of connections is unknown again; whoever is alive reports within `rejoin_s`.
    """

    epoch: int
    base_job_id: int
    restart_count: int = 0  # SLURM_RESTART_COUNT: differs when the base job was requeued
    resume_step: int = 0  # step of the newest loadable checkpoint (0: none)
    rejoin_s: float = 10.0


class StepHeld(msgspec.Struct, frozen=True, kw_only=True):
    """A step that an agent still has running: workers of one generation on one node."""

    generation: int
    node: str


class AgentJoined(Fact, frozen=True, kw_only=True, tag="agent_joined"):
    """An agent connected and authenticated; again after every reconnect. `nodes` is what Slurm gave its job."""

    job_id: int
    role: str  # "base" | "companion"
    nodes: tuple[str, ...]
    incarnation: str  # new for every agent process
    restart_count: int = 0
    steps: tuple[StepHeld, ...] = ()
    qos: str = ""


class AgentLost(Fact, frozen=True, kw_only=True, tag="agent_lost"):
    """No sign of life from an agent for `agent_timeout`."""

    job_id: int
    reason: str


class NoticeReceived(Fact, frozen=True, kw_only=True, tag="notice_received"):
    """This allocation will go away at `deadline` (None: soon, unknown). May repeat, from several sources."""

    job_id: int
    source: str  # "SIGUSR1", "SIGTERM", "slurm record", "time limit", ...
    deadline: float | None = None


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the machine needs of one job as Slurm sees it."""

    job_id: int
    state: str  # canonical long name: PENDING RUNNING COMPLETING SUSPENDED COMPLETED CANCELLED ... or GONE
    nodes: tuple[str, ...] = ()
    reason: str = ""
    preempt_time: float | None = None
    end_time: float | None = None
    token: str = ""  # submit token (in the job's comment), "" if not ours


class JobsSeen(Fact, frozen=True, kw_only=True, tag="jobs_seen"):
    """One answer of Slurm about all jobs of this run. A job of ours that is missing here is GONE."""

    jobs: tuple[JobRecord, ...]


class SlurmSilent(Fact, frozen=True, kw_only=True, tag="slurm_silent"):
    """Slurm did not answer. Nothing is known; nothing may be decided from it."""

    reason: str


class CompanionSubmitted(Fact, frozen=True, kw_only=True, tag="companion_submitted"):
    """`SubmitCompanion(token)` succeeded (or an earlier submission with this token was found)."""

    token: str
    job_id: int


class CompanionRefused(Fact, frozen=True, kw_only=True, tag="companion_refused"):
    """`SubmitCompanion(token)` failed. `permanent`: the same request can never succeed."""

    token: str
    reason: str
    permanent: bool = False


class NodeReady(Fact, frozen=True, kw_only=True, tag="node_ready"):
    """All workers of `generation` on `node` are up and wait: at the gate, or as a standby for a seat.

    Here and in the other facts about a node's workers, `generation` is the one they were launched for.
    """

    generation: int
    node: str


class NodeEnded(Fact, frozen=True, kw_only=True, tag="node_ended"):
    """The workers of `generation` on `node` are gone (their srun step ended, whatever ended it)."""

    generation: int
    node: str
    exit_code: int = 0
    signal: int = 0
    said: str = ""  # what the workers said before: "drained", "finished", "stopped", or "" (level 0, crash)
    detail: str = ""  # first failing worker, last log lines


class WorkerLost(Fact, frozen=True, kw_only=True, tag="worker_lost"):
    """A worker of `generation` on `node` gave no sign of life for `worker_timeout` (frozen, or its node is)."""

    generation: int
    node: str
    reason: str


class GenerationElastic(Fact, frozen=True, kw_only=True, tag="generation_elastic"):
    """All workers of `generation` said that they can regroup in place."""

    generation: int


class GenerationRegrouped(Fact, frozen=True, kw_only=True, tag="generation_regrouped"):
    """All workers of `generation` have their place and their state in it; they go on after `step`."""

    generation: int
    step: int = 0


class RegroupFailed(Fact, frozen=True, kw_only=True, tag="regroup_failed"):
    """A worker cannot get into `generation`: only a checkpoint helps."""

    generation: int
    reason: str


class WorkersStayed(Fact, frozen=True, kw_only=True, tag="workers_stayed"):
    """The workers of `generation` were to drain, could not save, and did not have to leave: they train on."""

    generation: int
    reason: str


class GenerationStumbled(Fact, frozen=True, kw_only=True, tag="generation_stumbled"):
    """A collective of `generation` (or of the regroup into it) failed; its workers wait for what they are told."""

    generation: int
    reason: str = ""


class NodeProbed(Fact, frozen=True, kw_only=True, tag="node_probed"):
    """A suspect node was asked to run a trivial step."""

    node: str
    ok: bool
    detail: str = ""


class GenerationStepping(Fact, frozen=True, kw_only=True, tag="generation_stepping"):
    """The first optimizer step of `generation` was completed: the transition is over.

    `stall_s`: from the last step of the generation before. `steps_lost`: steps that are done again.
    """

    generation: int
    step: int
    stall_s: float = 0.0
    steps_lost: int = 0


class CheckpointCommitted(Fact, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """A checkpoint of `step` is published and durable."""

    generation: int
    step: int
    save_s: float = 0.0


class ScaleRequested(Fact, frozen=True, kw_only=True, tag="scale_requested"):
    """The user asks for `nodes` nodes (None: back to as many as the policy allows)."""

    nodes: int | None


class StopRequested(Fact, frozen=True, kw_only=True, tag="stop_requested"):
    """The user asks the run to save and end. `finished` stays false: it can be resumed by `submit`."""

    reason: str = "asked by the user"


class TimePassed(Fact, frozen=True, kw_only=True, tag="time_passed"):
    """Nothing happened; time did. Sent about once a second."""


Event = (
    SupervisorStarted
    | AgentJoined
    | AgentLost
    | NoticeReceived
    | JobsSeen
    | SlurmSilent
    | CompanionSubmitted
    | CompanionRefused
    | NodeReady
    | NodeEnded
    | WorkerLost
    | GenerationElastic
    | GenerationRegrouped
    | RegroupFailed
    | GenerationStumbled
    | WorkersStayed
    | NodeProbed
    | GenerationStepping
    | CheckpointCommitted
    | ScaleRequested
    | StopRequested
    | TimePassed
)
