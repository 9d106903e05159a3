"""A controller that lives in a dict, for tests of everything that asks Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.api import BatchRequest, Job, Node
from slurm_elastic.slurm.states import Meaning, meaning


def _no_time() -> float:
    return 0.0


@dataclass(slots=True)
class MemorySlurm:
    """The test plays the controller: it starts, preempts and ends jobs, falls silent or refuses.

    `silent`: every call raises SlurmUnknown with this text. `lose_answer`: the next submit is accepted, and its answer
    lost. `refuse`: (text, retryable) with which every submission is refused.
    """

    user: str = "alice"
    clock: Callable[[], float] = _no_time
    known_jobs: dict[int, Job] = field(default_factory=dict)
    known_nodes: dict[str, Node] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    known_partitions: dict[str, dict[str, str]] = field(default_factory=dict)
    known_qos: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[BatchRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    queries: int = 0
    silent: str = ""
    lose_answer: bool = False
    refuse: tuple[str, bool] | None = None

    # ---- what the test does to jobs ----------------------------------------------------------------------------

    def start(self, job_id: int, *nodes: str) -> None:
        """A pending job gets these nodes and runs."""
        now = self.clock()
        limit = self.known_jobs[job_id].time_limit_s
        self._change(
            job_id,
            state="RUNNING",
            reason="",
            nodes=nodes,
            num_nodes=len(nodes),
            batch_host=nodes[0],
            start_time=now,
            end_time=None if limit is None else now + limit,
        )

    def preempt(self, job_id: int, grace_s: float) -> None:
        """Its grace time begins: it runs on, with PreemptTime and a nearer EndTime."""
        self._change(job_id, preempt_time=self.clock(), end_time=self.clock() + grace_s)

    def lose_node(self, job_id: int, node: str) -> None:
        """Slurm takes a dead node out of a job under --no-kill."""
        left = tuple(name for name in self.known_jobs[job_id].nodes if name != node)
        self._change(job_id, nodes=left, num_nodes=len(left))

    def end(self, job_id: int, state: str = "COMPLETED", exit_code: str = "0:0") -> None:
        self._change(job_id, state=state, exit_code=exit_code, end_time=self.clock())

    def forget(self, job_id: int) -> None:
        """Slurm forgets ended jobs after MinJobAge."""
        del self.known_jobs[job_id]

    # ---- SlurmClient -------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int, int]:
        self._answering("scontrol")
        return (22, 5, 8)

    def jobs(self, job_ids: Sequence[int] = (), *, token_prefix: str = "", user: str = "") -> tuple[Job, ...]:
        self._answering("squeue")
        mine = (job for job in self.known_jobs.values() if job.user == (user or self.user))
        if not job_ids and not token_prefix:
            return tuple(mine)
        return tuple(
            job for job in mine if job.job_id in job_ids or (token_prefix and job.comment.startswith(token_prefix))
        )

    def nodes(self, names: Sequence[str] = ()) -> tuple[Node, ...]:
        self._answering("scontrol")
        return tuple(node for node in self.known_nodes.values() if not names or node.name in names)

    def submit(self, request: BatchRequest) -> int:
        self._answering("sbatch")
        for job in self.known_jobs.values():
            if request.token and job.comment == request.token:
                return job.job_id
        self._refusing("sbatch")
        job_id = max(self.known_jobs, default=0) + 1
        self.requests.append(request)
        self.known_jobs[job_id] = self._new_job(job_id, request)
        if self.lose_answer:
            self.lose_answer = False
            raise SlurmUnknown("`sbatch` gave no answer within 30 s")
        return job_id

    def test_only(self, request: BatchRequest) -> str:
        self._answering("sbatch")
        self._refusing("sbatch")
        return f"sbatch: Job 1 to start at 2026-01-01T00:00:00 using 1 processors ({request.script.name})"

    def cancel(self, job_id: int) -> None:
        self._answering("scancel")
        self.cancelled.append(job_id)
        job = self.known_jobs.get(job_id)
        if job is not None and meaning(job.state) is not Meaning.OVER:
            self.end(job_id, "CANCELLED", "0:9")

    def requeue(self, job_id: int) -> None:
        self._answering("scontrol")
        if job_id not in self.known_jobs:
            raise SlurmCommandError(
                ("scontrol", "requeue", str(job_id)), 1, f"Invalid job id specified for job {job_id}"
            )
        job = self.known_jobs[job_id]
        if job.state != "PENDING":
            self._change(
                job_id, state="PENDING", reason="BeginTime", nodes=(), batch_host="", restarts=job.restarts + 1
            )

    def config(self) -> Mapping[str, str]:
        self._answering("scontrol")
        return self.settings

    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        self._answering("scontrol")
        return self.known_partitions

    def qos(self) -> Mapping[str, Mapping[str, str]]:
        self._answering("sacctmgr")
        return self.known_qos

    # ---- inside ------------------------------------------------------------------------------------------------

    def _new_job(self, job_id: int, request: BatchRequest) -> Job:
        def text(name: str) -> str:
            value = request.options.get(name, "")
            return value if isinstance(value, str) else ""

        return Job(
            job_id=job_id,
            state="PENDING",
            name=text("job-name") or request.script.name,
            user=self.user,
            partition=text("partition"),
            qos=text("qos"),
            account=text("account"),
            num_nodes=int((text("nodes") or "1").split("-")[0]),
            reason="Priority",
            comment=request.token or text("comment"),
            submit_time=self.clock(),
            requeue="no-requeue" not in request.options,
        )

    def _change(self, job_id: int, **changes: object) -> None:
        self.known_jobs[job_id] = replace(self.known_jobs[job_id], **changes)  # type: ignore[arg-type]

    def _answering(self, program: str) -> None:
        self.queries += 1
        if self.silent:
            raise SlurmUnknown(f"`{program}` got no answer: {self.silent}")

    def _refusing(self, program: str) -> None:
        if self.refuse is not None:
            said, retryable = self.refuse
            raise SlurmCommandError((program,), 1, said, retryable=retryable)
