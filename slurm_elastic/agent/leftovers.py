"""Steps of this job that nobody watches any more: after an agent or an srun was killed."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

_DEADLINE_S = 20.0


def step_ids(job_id: int, environ: Mapping[str, str], *, name: str = "") -> tuple[str, ...]:
    """Ids of the job's srun steps, of those called `name` when it is given; () when Slurm does not answer."""
    answer = _ask(("squeue", "--steps", f"--jobs={job_id}", "--noheader", "--format=%i|%j"), environ)
    rows = (line.strip().partition("|") for line in answer.splitlines())
    return tuple(
        step
        for step, _, called in rows
        if step.rpartition(".")[2].isdigit() and (not name or called.strip() == name)  # not .batch, not .extern
    )


def kill_steps(job_id: int, environ: Mapping[str, str], *, name: str = "") -> None:
    """SIGKILL for all processes of these steps, by Slurm. Bounded; a controller that is away is not waited for."""
    found = step_ids(job_id, environ, name=name)
    if found:
        log.warning("killing leftover steps %s", " ".join(found))
        _ask(("scancel", "--signal=KILL", *found), environ)


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as broken:
        log.warning("%s: %s", argv[0], broken)
        return ""
    if done.returncode:
        log.warning("%s exited %d: %s", argv[0], done.returncode, done.stderr.strip())
        return ""
    return done.stdout
