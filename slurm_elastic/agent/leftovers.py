"""Steps of this job that nobody watches any more: after an agent or an srun was killed."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_elastic.slurm.hostlist import expand

log = logging.getLogger(__name__)

_DEADLINE_S = 20.0


def kill_steps(job_id: int, environ: Mapping[str, str], *, name: str = "", nodes: Sequence[str] = ()) -> None:
    """SIGKILL for all processes of the job's srun steps, or of those called `name` that run on one of `nodes`.

    Done by Slurm. Bounded; a controller that is away is not waited for.
    """
    answer = _ask(("squeue", "--steps", f"--jobs={job_id}", "--noheader", "--format=%i|%j|%N"), environ)
    found = tuple(step for step in map(_numbered, answer.splitlines()) if step and _is_meant(step, name, nodes))
    if found:
        log.warning("killing leftover steps %s", ", ".join(f"{step.id} ({step.name})" for step in found))
        _ask(("scancel", "--signal=KILL", *(step.id for step in found)), environ)


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    name: str
    nodes: tuple[str, ...]


def _numbered(line: str) -> _Row | None:
    """A step that srun made: not 7.batch, not 7.extern."""
    words = line.strip().split("|")
    if len(words) != 3 or not words[0].rpartition(".")[2].isdigit():
        return None
    return _Row(words[0], words[1].strip(), expand(words[2]))


def _is_meant(step: _Row, name: str, nodes: Sequence[str]) -> bool:
    return (not name or step.name == name) and (not nodes or not set(nodes).isdisjoint(step.nodes))


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
