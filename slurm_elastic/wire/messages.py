"""What the processes of a run say to each other. JSON on the wire (msgspec tagged unions), never pickle.

Who talks: every agent and every worker (also one that still waits at the gate) holds one connection to the
supervisor. The first message after authentication is AgentHello or WorkerHello; the answer is Welcome or Refused.
`generation` fences: the supervisor drops what an older generation says, workers refuse what an older epoch orders.
"""

from __future__ import annotations

import msgspec

from slurm_elastic.machine.events import StepHeld


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of all messages."""


# ---- agent -> supervisor


class AgentHello(Message, frozen=True, kw_only=True, tag="agent_hello"):
    job_id: int
    role: str  # "base" | "companion"
    nodes: tuple[str, ...]
    incarnation: str
    restart_count: int = 0
    qos: str = ""
    steps: tuple[StepHeld, ...] = ()
    notice_source: str = ""  # a notice heard before we were connected
    notice_deadline: float | None = None


class AgentNotice(Message, frozen=True, kw_only=True, tag="agent_notice"):
    """A signal arrived, or Slurm's record shows a preemption: this allocation will go away."""

    source: str
    deadline: float | None = None


class StepEnded(Message, frozen=True, kw_only=True, tag="step_ended"):
    """The srun step of `generation` on `node` is over. `detail`: last lines of its logs when it failed."""

    generation: int
    node: str
    exit_code: int = 0
    signal: int = 0
    detail: str = ""


class ProbeAnswer(Message, frozen=True, kw_only=True, tag="probe_answer"):
    node: str
    ok: bool
    detail: str = ""


# ---- worker -> supervisor


class WorkerHello(Message, frozen=True, kw_only=True, tag="worker_hello"):
    """`stage`: "gate" (imports done, waiting for ranks), "standby" (model built, waiting for a seat), "training" (the
    library inside the script) or "notice".

    "notice" is a connection for one WorkerNotice, beside whatever else this worker has.
    """

    generation: int
    node: str
    local_rank: int
    pid: int
    stage: str
    address: str = ""  # where other workers reach this one: the connection's own local address
    port: int = 0  # a free port there, for the process group's store
    epoch: int = 0  # of the supervisor that opened the gate
    global_rank: int = -1
    job_id: int = 0
    launch: int = 0  # the generation this process was started for; 0: `generation`
    live: bool = False  # the script uses level 2: it can regroup in place
    store_port: int = 0  # of the TCPStore that this process keeps for its whole life; 0: none


class StepDone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One committed optimizer step; becomes one line of the ledger."""

    step: int  # counts from 1
    world: int
    samples: int
    samples_sha256: str
    loss: float | None = None
    lr: float | None = None
    time: float = 0.0


class Steps(Message, frozen=True, kw_only=True, tag="steps"):
    """Committed steps since the last such message, from global rank 0 only, in order."""

    generation: int
    steps: tuple[StepDone, ...]
    epoch_of_data: float = 0.0  # passes over the data set so far
    total_steps: int = 0  # 0: the script did not say


class Saved(Message, frozen=True, kw_only=True, tag="saved"):
    """Global rank 0: a checkpoint lies complete, fsynced and with its manifest in `directory` (not yet public).

    All Steps up to `step` were sent before. The supervisor publishes it and answers Published.
    """

    generation: int
    step: int
    directory: str  # name inside the checkpoint directory
    save_s: float
    size_bytes: int = 0


class SaveFailed(Message, frozen=True, kw_only=True, tag="save_failed"):
    generation: int
    step: int
    reason: str


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """This worker is about to exit with code 0. `why`: "drained", "finished" or "stopped"; `step`: the last one."""

    generation: int
    why: str
    step: int


class Stumbled(Message, frozen=True, kw_only=True, tag="stumbled"):
    """A collective failed: a peer is gone, perhaps. This worker has `step` committed steps and waits for Regroup.

    In the middle of a regroup `generation` is the one that it goes into.
    """

    generation: int
    step: int
    error: str = ""


class Regrouped(Message, frozen=True, kw_only=True, tag="regrouped"):
    """This worker has its place and its state in `generation` and goes on after `step`. Figures are its own.

    From here on its hellos name `generation`, with stage "training".
    """

    generation: int
    step: int
    received_bytes: int = 0
    sent_bytes: int = 0
    moved_s: float = 0.0
    regroup_s: float = 0.0  # from the boundary (or the error) to here


class RegroupFailed(Message, frozen=True, kw_only=True, tag="regroup_failed"):
    """This worker cannot get into `generation` (a shard is gone everywhere): only a checkpoint helps."""

    generation: int
    reason: str


class Stayed(Message, frozen=True, kw_only=True, tag="stayed"):
    """Global rank 0, after a Drain with `may_stay`: the state could not be saved, so all ranks train on."""

    generation: int
    reason: str


class Warned(Message, frozen=True, kw_only=True, tag="warned"):
    """Something the user should see in `status` (a replaced signal handler, a skipped save, ...)."""

    text: str


class WorkerNotice(Message, frozen=True, kw_only=True, tag="worker_notice"):
    """A worker got a signal. Some sites tell only the steps of a preemption: the supervisor asks Slurm at once."""

    source: str  # "SIGTERM", "SIGUSR1", ...


# ---- supervisor -> agent


class Launch(Message, frozen=True, kw_only=True, tag="launch"):
    """Start the workers of `generation` on these nodes of your allocation. A repeat for a running step is ignored."""

    epoch: int
    generation: int
    nodes: tuple[str, ...]


class Kill(Message, frozen=True, kw_only=True, tag="kill"):
    """End the workers of `generation` (and of all older ones, unless `alone`) on these nodes; empty: all of yours."""

    epoch: int
    generation: int
    nodes: tuple[str, ...] = ()
    reason: str = ""
    alone: bool = False


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    epoch: int
    node: str


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """End: kill what still runs, exit 0. `final`: the run itself is over (base: do not start the supervisor again)."""

    epoch: int
    reason: str
    final: bool = False
    exit_code: int = 0


# ---- supervisor -> worker


class Gate(Message, frozen=True, kw_only=True, tag="gate"):
    """Ranks for a worker that waits at the gate. Everything torchrun would have set."""

    epoch: int
    generation: int
    global_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    master_addr: str
    master_port: int
    restart_count: int  # of the run: generations before this one
    resume: str = ""  # directory name of the checkpoint to load; "" = from the start
    resume_step: int = 0
    standby: bool = False  # run the script, but wait for a seat: ranks are provisional, nothing is resumed


class Seat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process."""

    launch: int
    node: str
    local_rank: int = 0


class Regroup(Message, frozen=True, kw_only=True, tag="regroup"):
    """Go into `generation` in place. `seats`: its workers by global rank. `departing`: hand over, then leave.

    A repeat, or one with a lower generation than a worker knows, is ignored; a higher one replaces it at any time.
    """

    epoch: int
    generation: int
    before: int  # generation of the survivors
    seats: tuple[Seat, ...]
    departing: tuple[Seat, ...] = ()
    reason: str = ""
    planned: bool = True  # False: somebody was lost; do not wait for a boundary
    deadline: float | None = None  # Unix seconds: departing workers are gone then
    store_addr: str = ""  # of the first seat
    store_port: int = 0
    ledger_step: int = 0  # last step that the supervisor has


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """Agree on a boundary, stop there, save if `save`, send Leaving and exit 0.

    One for a generation that the worker is still going into counts as soon as it is there.
    `may_stay`: where the save fails, train on and send Stayed; this order is over then.
    """

    epoch: int
    generation: int
    reason: str
    save: bool = True
    deadline: float | None = None
    why: str = "drained"  # what to say in Leaving: "drained" or "stopped"
    may_stay: bool = False


class Published(Message, frozen=True, kw_only=True, tag="published"):
    """The checkpoint of `step` is public (ok), or was refused (fenced, corrupt)."""

    step: int
    ok: bool
    reason: str = ""


class Fenced(Message, frozen=True, kw_only=True, tag="fenced"):
    """Your generation is over and goes on elsewhere: write nothing, exit now.

    `generation`: the one that you were launched for, or a later one.
    """

    generation: int
    reason: str


# ---- both ways


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    epoch: int
    generation: int  # the current one (0: none yet)
    heartbeat_s: float


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    reason: str


class Beat(Message, frozen=True, kw_only=True, tag="beat"):
    """Sign of life; `step` from training workers.

    The supervisor answers each. An answer that `confirms` also says that all that came before that beat is safe;
    one that does not is followed by one that does, when it is.
    """

    step: int = 0
    confirms: bool = True


AnyMessage = (
    AgentHello
    | AgentNotice
    | StepEnded
    | ProbeAnswer
    | WorkerHello
    | Steps
    | Saved
    | SaveFailed
    | Leaving
    | Stumbled
    | Regrouped
    | RegroupFailed
    | Stayed
    | Warned
    | WorkerNotice
    | Launch
    | Kill
    | Probe
    | Release
    | Gate
    | Regroup
    | Drain
    | Published
    | Fenced
    | Welcome
    | Refused
    | Beat
)
