"""`slurm-elastic events RUN`."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_elastic.rundir import RunDirectory

if TYPE_CHECKING:
    from slurm_elastic.observe.events import Happening

LOOK_AGAIN_S = 0.5
KINDS = (
    "transition", "checkpoint", "launching", "regrouping", "notice", "job_submitted", "job_joined", "job_silent",
    "job_back", "job_suspended", "job_resumed", "job_gone", "worker_failed", "worker_lost", "companion_refused",
    "slurm_silent", "slurm_answers", "scale_requested", "stop_requested", "stayed", "supervisor_started", "requeued",
    "warning", "finished", "stopped", "failed",
)  # fmt: skip


@click.command()
@click.argument("run", metavar="RUN|JOBID")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object per line (stable, see docs/cli.md).")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C or the run's end.")
@click.option("--kind", "kinds", multiple=True, metavar="K", help="Only this kind, e.g. transition; may be repeated.")
def events(run: str, json_wanted: bool, follow: bool, kinds: tuple[str, ...]) -> None:
    """Show what happened in RUN, when and why: the answer to "why did it shrink?", also long after its end.

    \b
    Examples:
      slurm-elastic events runs/gpt --kind transition
      slurm-elastic events 4711 --json --follow
    \b
    Exit codes: 0 shown (also when nothing has happened yet), 2 no such run or kind
    """
    from slurm_elastic.cli.find_run import find_run

    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise click.BadParameter(
            f"no event has the kind {unknown[:40]!a}{hint} (there are {', '.join(KINDS)})", param_hint="--kind"
        )
    found = find_run(run)
    try:
        for event in _all(found, follow):
            if kinds and event.kind not in kinds:
                continue
            click.echo(json.dumps(event.as_json(), separators=(",", ":")) if json_wanted else line_of(event))
    except KeyboardInterrupt:
        return


def line_of(event: Happening) -> str:
    """One event for people: of a reason of several lines (an error and its traceback) the first."""
    figures = " ".join(f"{name}={_short(value)}" for name, value in event.figures.items())
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    reason = event.reason.partition("\n")[0]
    line = f"{moment}  gen {event.generation:<3} {event.kind:12} {reason}" + (f"  [{figures}]" if figures else "")
    return "".join(letter if letter.isprintable() else "?" for letter in line)  # reasons quote workers' logs


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _all(run: RunDirectory, follow: bool) -> Iterator[Happening]:
    from slurm_elastic.observe.events import parse_event, read_events

    if not follow:
        yield from read_events(run.events)
        return
    for line in _lines(run.events, run.done):
        if event := parse_event(line):
            yield event


def _lines(path: Path, done: Path) -> Iterator[bytes]:
    """Whole lines, as they come, until `done` exists and all was read."""
    position, rest = 0, b""
    while True:
        over = done.exists()
        if path.exists():
            with path.open("rb") as out:
                out.seek(position)
                rest += out.read()
                position = out.tell()
        *whole, rest = rest.split(b"\n")
        yield from whole
        if over:
            return
        time.sleep(LOOK_AGAIN_S)
