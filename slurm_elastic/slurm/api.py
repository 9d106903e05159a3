"""What this project may ask of Slurm. Implementations: command_client (real), testing.memory_slurm (a dict)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job (or het component) as Slurm sees it now. Times: Unix seconds or None."""

    job_id: int
    state: str  # canonical long base name: PENDING, RUNNING, COMPLETING, ...; unknown ones as Slurm prints them
    name: str = ""
    user: str = ""
    partition: str = ""
    qos: str = ""
    account: str = ""
    nodes: tuple[str, ...] = ()  # expanded
    num_nodes: int = 0
    reason: str = ""
    comment: str = ""
    batch_host: str = ""
    submit_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    time_limit_s: float | None = None
    preempt_time: float | None = None
    requeue: bool = False
    restarts: int = 0
    exit_code: str = ""
    het_job_id: int | None = None
    het_job_offset: int | None = None
    dependency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: base state plus flags, e.g. ALLOCATED and {DRAIN, REBOOT_REQUESTED}."""

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    cpus: int = 0
    gres: str = ""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A batch job to submit. `options` are sbatch long options without the dashes ("time" -> "2:00:00"; True: flag)."""

    script: Path
    arguments: tuple[str, ...] = ()
    options: Mapping[str, str | bool] = field(default_factory=dict)
    token: str = ""  # goes into --comment; found again by `find_token`


class SlurmClient(Protocol):
    """Asked calls raise SlurmUnknown when Slurm gave no answer and SlurmCommandError when it refused.

    No call hangs: each has a deadline of its own.
    """

    def version(self) -> tuple[int, int, int]:
        """(22, 5, 8) for "slurm-wlm 22.05.8"."""
        ...

    def jobs(self, job_ids: Sequence[int] = (), *, token_prefix: str = "", user: str = "") -> tuple[Job, ...]:
        """Jobs by id, and those whose comment starts with `token_prefix`, in ONE query; without either, all.

        Of the calling user, or of `user`. Ids that Slurm no longer knows are simply missing from the answer.
        """
        ...

    def nodes(self, names: Sequence[str] = ()) -> tuple[Node, ...]: ...

    def submit(self, request: BatchRequest) -> int:
        """Job id. Looks the token up before a retry, so that one token never makes two jobs."""
        ...

    def test_only(self, request: BatchRequest) -> str:
        """`sbatch --test-only`: what Slurm says if it would accept. Raises SlurmCommandError if not."""
        ...

    def cancel(self, job_id: int) -> None:
        """Cancel; a job that is already gone is success."""
        ...

    def requeue(self, job_id: int) -> None:
        """The job ends where it runs and starts again later. One that is pending already is success."""
        ...

    def config(self) -> Mapping[str, str]:
        """`scontrol show config`, keys as printed."""
        ...

    def partitions(self) -> Mapping[str, Mapping[str, str]]: ...

    def qos(self) -> Mapping[str, Mapping[str, str]]:
        """QOS by name (fields as sacctmgr names them); {} without accounting."""
        ...
