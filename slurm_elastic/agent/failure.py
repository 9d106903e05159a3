"""How a step ended, and who failed first: from srun's exit code, its messages and the workers' logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.rundir import RunDirectory

_TAIL_LINES = 12
_TAIL_BYTES = 16_384
_DETAIL_CHARACTERS = 2000
_ERROR_CHARACTERS = 200  # of the line that names the error, and of the one with its fix
_SIGNAL_EXIT = 128  # srun adds the signal's number to this

# srun: error: n2: task 1: Exited with exit code 3        srun: error: n2: tasks 0-1: Killed
_TASK_ENDED = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<task>\d+)[-,\d]*: (?P<how>.+)")
_EXITED = re.compile(r"Exited with exit code (\d+)")
_RANK = re.compile(r"^\[rank\d+\]: ?")  # what torch puts before each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
NODE_FAILED = "Node failure on"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")


@dataclass(frozen=True, slots=True)
class Ending:
    """`exit_code` and `signal` of the first worker that failed, else of srun; `detail` for people."""

    exit_code: int
    signal: int
    detail: str = ""


def srun_log(run_dir: RunDirectory, generation: int, where: str) -> Path:
    """What srun itself says about the step of `generation` on `where` (a node, or "mpi")."""
    return run_dir.logs / f"gen-{generation:04d}" / f"{where}.srun.log"


def task_failed(line: bytes) -> bool:
    """Whether srun says here that a task ended badly."""
    return line.startswith(b"srun: error: ") and _TASK_ENDED.match(line.decode("utf-8", "replace")) is not None


def ending_of(run_dir: RunDirectory, generation: int, srun_said: str, returncode: int) -> Ending:
    """`returncode` as of Popen; `srun_said`: what srun wrote during this step."""
    exit_code, signal = _plain(returncode)
    if NODE_FAILED in srun_said:
        # Exit code 0 on 22.05, 1 on 24.11: neither says anything about the workers.
        return Ending(exit_code or 1, signal, _last_lines(srun_said))
    if not exit_code and not signal:
        return Ending(0, 0)
    first = _TASK_ENDED.search(srun_said)
    if first is None:
        return Ending(exit_code, signal, _last_lines(srun_said))
    exited = _EXITED.search(first["how"])
    if exited:
        exit_code, signal = _plain(int(exited[1]))
    log = run_dir.worker_log(generation, first["node"], _local_rank(run_dir, generation, first["node"], first["task"]))
    tail = read_tail(log)
    end, error = _last_lines(tail), headline(tail)
    where = f"{log.parent.parent.name}/{log.parent.name}/{log.name}"
    title = f"{log.stem}: {error or first['how'].strip()} (see {where})"
    return Ending(exit_code, signal, f"{title}\n{end[-_DETAIL_CHARACTERS:]}".strip())


def headline(end_of_log: str) -> str:
    """The line that names the error, with its fix if it has one: that of the last traceback, else the last line.

    A traceback long before the end was not the end.
    """
    lines = [plain for line in end_of_log.splitlines() if (plain := _RANK.sub("", line).rstrip())]
    begin = next((at for at in reversed(range(len(lines))) if lines[at] == _TRACEBACK), len(lines))
    raised = (at for at in range(begin + 1, len(lines)) if not lines[at][0].isspace())
    error = next(raised, -1)
    if error < max(0, len(lines) - _TAIL_LINES):
        error = len(lines) - 1
    if error > 0 and _is_fix(lines[error]):
        error -= 1
    fix = next(filter(_is_fix, lines[error + 1 :]), "")
    return "; ".join(line.strip()[:_ERROR_CHARACTERS] for line in (*lines[error : error + 1], fix) if line)


def _is_fix(line: str) -> bool:
    """Our own errors say what to do in a line of its own."""
    return line.lstrip().startswith("fix: ")


def read_tail(path: Path) -> str:
    """The end of a file; "" when it is not there."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _TAIL_BYTES))
            return _plain_text(log.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def _local_rank(run_dir: RunDirectory, generation: int, node: str, task: str) -> int:
    """In a step of one node the task id is the local rank; in a step of several it is not: take one that exists."""
    if run_dir.worker_log(generation, node, int(task)).exists():
        return int(task)
    logs = sorted(run_dir.worker_log(generation, node, 0).parent.glob(f"{node}-*.log"))
    return int(logs[0].stem.rpartition("-")[2]) if logs else int(task)


def _plain(returncode: int) -> tuple[int, int]:
    if returncode < 0:
        return 0, -returncode
    if _SIGNAL_EXIT < returncode < _SIGNAL_EXIT + 65:
        return returncode, returncode - _SIGNAL_EXIT
    return returncode, 0


def _plain_text(text: str) -> str:
    """Without escape sequences and other control characters: a terminal would obey them."""
    text = _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _last_lines(text: str) -> str:
    return "\n".join(_plain_text(text).rstrip().splitlines()[-_TAIL_LINES:])[-_DETAIL_CHARACTERS:]
