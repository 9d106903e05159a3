"""`SlurmClient` by Slurm's own commands, 22.05 to 26.05.

One query covers all jobs of a run: `squeue --me` is one request of the controller, whose cost does not grow with the
number of jobs or nodes of the run, and its named fields are the same in all these releases.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from slurm_elastic.errors import MissingDependency, SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm import parse_records, parse_tables, parse_values
from slurm_elastic.slurm.api import BatchRequest, Job, Node
from slurm_elastic.slurm.back_off import BackOff
from slurm_elastic.slurm.environment import for_queries, scrubbed
from slurm_elastic.slurm.hostlist import fold
from slurm_elastic.slurm.refusals import job_is_gone, job_is_pending, no_accounting, refusal

# A client gives up by itself after twice MessageTimeout (10 s by default); this is for one that hangs.
DEADLINE_S = 30.0
T = TypeVar("T")
E = TypeVar("E", bound=SlurmUnknown | SlurmCommandError)
_PARSABLE = re.compile(r"(\d+)(?:;.*)?", re.ASCII)
_NO_SUCH_NODE = re.compile(r"^(?:Node \S+ not found|.*Invalid node name specified.*)$", re.MULTILINE)


class Runner(Protocol):
    """The only way out. Raises subprocess.TimeoutExpired at the deadline, OSError when it cannot start."""

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], deadline_s: float
    ) -> subprocess.CompletedProcess[str]: ...


def run_command(argv: Sequence[str], environ: Mapping[str, str], deadline_s: float) -> subprocess.CompletedProcess[str]:
    """The real Runner. In a session of its own: a signal to our process group must not end a question half-way."""
    return subprocess.run(
        argv,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=deadline_s,
        encoding="utf-8",
        errors="replace",  # job names may be in any encoding
        start_new_session=True,
        check=False,
    )


def sbatch_argv(request: BatchRequest, *first: str) -> tuple[str, ...]:
    """The command for `request`. Values are whole arguments: no shell and no `#SBATCH` parser reads them."""
    options = dict(request.options)
    if request.token:
        options["comment"] = request.token
    words = (f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value)
    return ("sbatch", *first, *words, "--", str(request.script), *request.arguments)


class CommandSlurm:
    """Safe to share between threads: each call is on its own, and the back-off is replaced as a whole."""

    def __init__(
        self,
        runner: Runner = run_command,
        *,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._runner = runner
        self._clock = clock
        environ = os.environ if environ is None else environ
        self._for_jobs = scrubbed(environ)
        self._for_queries = for_queries(environ)
        self._deadline_s = deadline_s
        self._back_off = BackOff()
        self._version: tuple[int, int, int] | None = None

    def version(self) -> tuple[int, int, int]:
        if self._version is None:
            self._version = self._parsed(parse_values.version, self._query("scontrol", "--version"))
        return self._version

    def jobs(self, job_ids: Sequence[int] = (), *, token_prefix: str = "", user: str = "") -> tuple[Job, ...]:
        self._respect_back_off()
        return self._jobs(job_ids, token_prefix, user)

    def nodes(self, names: Sequence[str] = ()) -> tuple[Node, ...]:
        self._respect_back_off()
        argv = ("scontrol", "-o", "show", "node", *([fold(names)] if names else []))
        done = self._run(argv, self._for_queries)
        said = done.stdout + done.stderr
        if done.returncode and not _NO_SUCH_NODE.search(said):
            raise self._noted(refusal(argv, done.returncode, said))
        found = self._parsed(parse_records.nodes, done.stdout)
        if not found and not done.returncode:
            raise self._noted(SlurmUnknown("scontrol succeeded without naming a node"))
        return found

    def submit(self, request: BatchRequest) -> int:
        if request.token and (known := self._find(request.token)):
            return known
        argv = sbatch_argv(request, "--parsable")
        try:
            answer = self._order(argv)
            # The exit code and the id decide; plugins of other releases print "error" beside both.
            for line in reversed(answer.splitlines()):
                if matched := _PARSABLE.fullmatch(line.strip()):
                    return int(matched[1])
            raise SlurmUnknown(f"sbatch succeeded without a job id: {answer[:80]!r}")
        except SlurmUnknown:
            # It may have been accepted all the same. Submitting again is up to a later call, which looks first too.
            if request.token and (known := self._find(request.token)):
                return known
            raise

    def test_only(self, request: BatchRequest) -> str:
        argv = sbatch_argv(request, "--test-only")
        done = self._run(argv, self._for_jobs)
        if done.returncode:
            raise self._noted(refusal(argv, done.returncode, done.stdout + done.stderr))
        return (done.stdout + done.stderr).strip()

    def cancel(self, job_id: int) -> None:
        try:
            self._order(("scancel", str(job_id)))
        except SlurmCommandError as refused:
            if not job_is_gone(refused):
                raise

    def requeue(self, job_id: int) -> None:
        try:
            self._order(("scontrol", "requeue", str(job_id)))
        except SlurmCommandError as refused:
            if not job_is_pending(refused):
                raise

    def config(self) -> Mapping[str, str]:
        return self._parsed(parse_records.settings, self._query("scontrol", "show", "config"))

    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        answer = self._query("scontrol", "-o", "show", "partition")
        return parse_records.by_name(answer, "PartitionName")

    def qos(self) -> Mapping[str, Mapping[str, str]]:
        try:
            answer = self._query("sacctmgr", "-P", "show", "qos")
        except SlurmCommandError as refused:
            if no_accounting(refused):
                return {}
            raise
        return {row["Name"]: row for row in self._parsed(parse_tables.bar_table, answer)}

    # ---- asking ------------------------------------------------------------------------------------------------

    def _jobs(self, job_ids: Sequence[int], token_prefix: str, user: str) -> tuple[Job, ...]:
        whose = (f"--user={user}",) if user else ("--me",)
        answer = self._answer("squeue", "-a", "--states=all", *whose, "-O", parse_tables.squeue_format())
        found = self._parsed(parse_tables.squeue_jobs, answer)
        if not job_ids and not token_prefix:
            return found
        wanted = frozenset(job_ids)
        return tuple(
            job
            for job in found
            if job.job_id in wanted or (token_prefix != "" and job.comment.startswith(token_prefix))
        )

    def _find(self, token: str) -> int | None:
        """The job with exactly this token, also one that ended minutes ago. Raises SlurmUnknown."""
        ids = [job.job_id for job in self._jobs((), token, "") if job.comment == token]
        return min(ids, default=None)

    def _query(self, *argv: str) -> str:
        self._respect_back_off()
        return self._answer(*argv)

    def _answer(self, *argv: str) -> str:
        done = self._run(argv, self._for_queries)
        if done.returncode:
            raise self._noted(refusal(argv, done.returncode, done.stderr or done.stdout))
        return done.stdout

    def _order(self, argv: Sequence[str]) -> str:
        """Orders are given even to a controller that was silent a moment ago: they must not get lost."""
        done = self._run(argv, self._for_jobs)
        if done.returncode:
            raise self._noted(refusal(argv, done.returncode, done.stderr or done.stdout))
        return done.stdout

    def _run(self, argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        try:
            done = self._runner(argv, environ, self._deadline_s)
        except subprocess.TimeoutExpired as late:
            raise self._noted(SlurmUnknown(f"`{argv[0]}` gave no answer within {self._deadline_s:g} s")) from late
        except FileNotFoundError as missing:
            raise MissingDependency(
                f"no `{argv[0]}` on PATH", fix="run this where Slurm's commands are (a login node), or load its module"
            ) from missing
        except OSError as broken:
            raise self._noted(SlurmUnknown(f"cannot start `{argv[0]}`: {broken.strerror}")) from broken
        if not done.returncode:
            self._back_off = BackOff()
        return done

    def _parsed(self, parse: Callable[[str], T], answer: str) -> T:
        try:
            return parse(answer)
        except (ValueError, KeyError) as garbled:
            raise self._noted(SlurmUnknown(f"Slurm's answer cannot be read: {garbled}")) from garbled

    def _respect_back_off(self) -> None:
        if (wait_s := self._back_off.wait_s(self._clock())) > 0:
            raise SlurmUnknown(f"Slurm was silent {self._back_off.silences} times; next try in {wait_s:.1f} s")

    def _noted(self, error: E) -> E:
        if isinstance(error, SlurmUnknown):
            self._back_off = self._back_off.after_silence(self._clock())
        return error
