"""`slurm-elastic status [RUN]`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from slurm_elastic.cli.show import as_json, as_table, table_of
from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.rundir import RunDirectory

if TYPE_CHECKING:
    from slurm_elastic.cli.submitted import Submitted
    from slurm_elastic.slurm.api import SlurmClient

REFRESH_S = 1.0
ASK_SLURM_EVERY_S = 15.0
_COLUMNS = ("run", "state", "nodes", "step", "problems", "directory")
_NO_RUNS = "no runs; `slurm-elastic submit run.yaml` starts one"
_NOTHING_LIVES = {"jobs": [], "nodes": 0, "workers": 0, "pending_companions": 0, "standby": None, "stale": False}


@click.command()
@click.argument("run", required=False, metavar="[RUN|JOBID]")
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C or the end of RUN.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON document (stable, see docs/cli.md).")
def status(run: str | None, watch: bool, json_wanted: bool) -> None:
    """List your runs, or show one: its nodes, progress, last checkpoint, last transition, and problems with a hint.

    RUN is a run directory, a run.yaml, or the id of any of its jobs. Without it, all runs you submitted and those in
    the current directory are listed.

    \b
    Examples:
      slurm-elastic status                     all your runs
      slurm-elastic status --watch             the same, again and again
      slurm-elastic status runs/gpt --watch
      slurm-elastic status 4711 --json | jq .problems
    \b
    Exit codes: 0 shown, 2 no such run
    """
    from slurm_elastic.cli.find_run import find_run
    from slurm_elastic.slurm import command_client

    if watch and json_wanted:
        raise click.UsageError("--watch and --json exclude each other; `events --json --follow` is for programs")
    if run is None:
        _watch_list() if watch else _list(json_wanted)
        return
    found = find_run(run)
    slurm = command_client.CommandSlurm()
    if watch:
        _watch(found, slurm)
    elif json_wanted:
        as_json(document(found, time.time(), slurm))
    else:
        from rich.console import Console

        from slurm_elastic.cli.status_view import view

        console = Console() if Console().is_terminal else Console(width=160)
        console.print(view(document(found, time.time(), slurm), time.time()))


def document(run: RunDirectory, now: float, slurm: SlurmClient | None = None) -> dict[str, Any]:
    """What --json prints: status.json, and beside it `supervisor_age_s`, `stale` and `done`.

    With `slurm`, a base job whose supervisor does not report is looked up there; without, nothing is asked.
    """
    import msgspec

    from slurm_elastic.cli.submitted import left_slurm, not_reported
    from slurm_elastic.observe.status import OVER, STALE_S, read_status

    found = read_status(run.status)
    done = run.done.exists()
    submitted = None if done else not_reported(run)
    shown: dict[str, Any] = {"version": 1, "run": run.path.name, "run_dir": str(run.path), "stale": False, "done": done}
    if found is None:
        shown |= {"run": _name(run), "state": "finished" if done else "prepared", "reason": "no supervisor has run yet"}
        return shown | (_waiting(submitted, slurm) if submitted else {} if done else _not_submitted(run))
    age_s = max(0.0, now - found.supervisor.time)
    shown |= msgspec.to_builtins(found) | {"supervisor_age_s": round(age_s, 1)}
    if submitted:
        return shown | _NOTHING_LIVES | {"problems": []} | _waiting(submitted, slurm)
    if done or found.state in OVER:
        return shown | _NOTHING_LIVES | ({"state": "finished"} if done else {})
    gone = left_slurm(run, found, slurm) if age_s > STALE_S and slurm else ""
    if gone:
        then = "`slurm-elastic submit` goes on from its last checkpoint"
        reason = f"{gone} (it was {found.state}: {found.reason}); {then}"
        return shown | _NOTHING_LIVES | {"state": "stopped", "reason": reason, "problems": []}
    return shown | {"stale": age_s > STALE_S}


def _waiting(submitted: Submitted, slurm: SlurmClient | None) -> dict[str, Any]:
    """The part of the document about a base job whose supervisor has not reported."""
    from slurm_elastic.cli.submitted import ask_slurm
    from slurm_elastic.slurm.states import Meaning, meaning

    name = f"base job {submitted.job_id}"
    facts: dict[str, Any] = {
        "job_id": submitted.job_id,
        "time": submitted.time,
        "slurm_state": None,
        "slurm_reason": None,
    }
    state, reason = "submitted", f"{name} was submitted; its supervisor has not reported yet"
    job = ask_slurm(submitted, slurm) if slurm else ""
    log = f"its log is logs/slurm-{submitted.job_id}.out"
    if job is None:
        state, reason = "failed", f"{name} ended before its supervisor reported, and Slurm has forgotten it; {log}"
    elif isinstance(job, str):
        reason += f"; Slurm cannot be asked: {job[:160]}" if job else ""
    else:
        facts |= {"slurm_state": job.state, "slurm_reason": job.reason or None}
        what = meaning(job.state, requeue=job.requeue)
        if what is Meaning.OVER:
            state = "stopped" if job.state == "CANCELLED" else "failed"
            reason = f"{name} is {job.state}: it ended before its supervisor reported; {log}"
        elif what is Meaning.WAITING:
            reason = f"{name} is {job.state}" + (f": {job.reason}" if job.reason else "")
        else:
            reason = f"{name} is {job.state}; its supervisor has not reported yet; {log}"
    return {"state": state, "reason": reason, "submitted": facts}


def _name(run: RunDirectory) -> str:
    """run.name, for a run whose supervisor has not said it; of settings that cannot be read, the directory's."""
    from slurm_elastic.config import load
    from slurm_elastic.errors import SlurmElasticError

    try:
        return load(run.config).run.name
    except (SlurmElasticError, OSError):
        return run.path.name


def _not_submitted(run: RunDirectory) -> dict[str, Any]:
    from slurm_elastic.cli.submitted import read_submitted

    submitted = read_submitted(run)
    if submitted is None:
        return {"reason": "`slurm-elastic submit` has submitted no base job of it, and no supervisor has run yet"}
    return {"state": "stopped", "reason": f"base job {submitted.job_id} was cancelled before it started"}


def _list(json_wanted: bool) -> None:
    rows = _rows()
    if json_wanted:
        as_json({"runs": rows})
    elif rows:
        as_table(_COLUMNS, _cells(rows))
    else:
        click.echo(_NO_RUNS)


def _watch_list() -> None:
    """Until Ctrl-C: a new run may come at any time."""
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        try:
            while True:
                rows = _rows()
                live.update(table_of(_COLUMNS, _cells(rows)) if rows else _NO_RUNS, refresh=True)
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return


def _rows() -> list[dict[str, Any]]:
    from slurm_elastic.cli.find_run import users_runs

    return [_row(run) for run in users_runs()]


def _cells(rows: list[dict[str, Any]]) -> list[list[object]]:
    """As _COLUMNS names them."""
    away = " (supervisor away)"
    return [
        [
            *(row["run"], row["state"] + away * row["stale"]),
            *(row[name] for name in ("nodes", "step", "problems", "run_dir")),
        ]
        for row in rows
    ]


def _row(run: RunDirectory) -> dict[str, Any]:
    try:
        shown = document(run, time.time())
    except RunDirectoryError as broken:
        shown = {"run": run.path.name, "state": "unreadable", "reason": broken.problem, "stale": False}
    row = {name: shown.get(name) for name in ("run", "state", "reason", "stale")}
    row |= {name: shown.get(name) or 0 for name in ("generation", "nodes", "step", "total_steps")}
    return row | {"run_dir": str(run.path), "problems": len(shown.get("problems", ()))}


def _watch(run: RunDirectory, slurm: SlurmClient) -> None:
    """Asks Slurm rarely; its last answer stands until then, or until the supervisor reports."""
    from rich.live import Live

    from slurm_elastic.cli.status_view import view

    asked_at, answer = float("-inf"), {}
    with Live(auto_refresh=False) as live:
        try:
            while True:
                asks = time.monotonic() - asked_at > ASK_SLURM_EVERY_S
                shown = document(run, time.time(), slurm if asks else None)
                if asks and ("submitted" in shown or shown["stale"]):
                    asked_at = time.monotonic()
                if "submitted" in shown:
                    if asks:
                        answer = {name: shown[name] for name in ("state", "reason", "submitted")}
                    shown |= answer
                live.update(view(shown, time.time()), refresh=True)
                if shown["done"] or shown["state"] in ("stopped", "failed"):
                    return
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return
