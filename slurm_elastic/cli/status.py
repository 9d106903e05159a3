"""`slurm-elastic status [RUN]`."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_elastic.cli.show import as_json, as_table
from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.rundir import RunDirectory

STALE_S = 5.0
REFRESH_S = 1.0


@click.command()
@click.argument("run", required=False, metavar="[RUN|JOBID]")
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C or the run's end.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON document (stable, see docs/cli.md).")
def status(run: str | None, watch: bool, json_wanted: bool) -> None:
    """List your runs, or show one: its nodes, progress, last checkpoint, last transition, and problems with a hint.

    RUN is a run directory or the id of any of its jobs. Without it, all runs you submitted and those in the
    current directory are listed.

    \b
    Examples:
      slurm-elastic status                     all your runs
      slurm-elastic status runs/gpt --watch
      slurm-elastic status 4711 --json | jq .problems
    \b
    Exit codes: 0 shown, 2 no such run
    """
    from slurm_elastic.cli.find_run import find_run

    if watch and json_wanted:
        raise click.UsageError("--watch and --json exclude each other; `events --json --follow` is for programs")
    if run is None:
        if watch:
            raise click.UsageError("--watch needs a RUN")
        _list(json_wanted)
        return
    found = find_run(run)
    if watch:
        _watch(found)
    elif json_wanted:
        as_json(document(found, time.time()))
    else:
        from rich.console import Console

        from slurm_elastic.cli.status_view import view

        console = Console() if Console().is_terminal else Console(width=160)
        console.print(view(document(found, time.time()), time.time()))


def document(run: RunDirectory, now: float) -> dict[str, Any]:
    """What --json prints: status.json, and beside it `supervisor_age_s`, `stale` and `done`."""
    import msgspec

    from slurm_elastic.observe.status import read_status

    found = read_status(run.status)
    done = run.done.exists()
    if found is None:
        waiting = {"run": run.path.name, "run_dir": str(run.path), "reason": "no supervisor has run yet"}
        return waiting | {"version": 1, "state": "finished" if done else "submitted", "stale": False, "done": done}
    age_s = max(0.0, now - found.supervisor.time)
    over = done or found.state in ("finished", "stopped", "failed")
    shown: dict[str, Any] = msgspec.to_builtins(found)
    return shown | {"supervisor_age_s": round(age_s, 1), "stale": age_s > STALE_S and not over, "done": done}


def _list(json_wanted: bool) -> None:
    from slurm_elastic.cli.find_run import users_runs

    rows = [_row(run) for run in users_runs()]
    if json_wanted:
        as_json({"runs": rows})
    elif rows:
        columns = ("run", "state", "nodes", "step", "problems", "run_dir")
        for row in rows:
            row["state"] += " (supervisor away)" if row["stale"] else ""
        as_table((*columns[:-1], "directory"), [[row[name] for name in columns] for row in rows])
    else:
        click.echo("no runs; `slurm-elastic submit run.yaml` starts one")


def _row(run: RunDirectory) -> dict[str, Any]:
    try:
        shown = document(run, time.time())
    except RunDirectoryError as broken:
        shown = {"run": run.path.name, "state": "unreadable", "reason": broken.problem, "stale": False}
    row = {name: shown.get(name) for name in ("run", "state", "reason", "stale")}
    row |= {name: shown.get(name) or 0 for name in ("generation", "nodes", "step", "total_steps")}
    return row | {"run_dir": str(run.path), "problems": len(shown.get("problems", ()))}


def _watch(run: RunDirectory) -> None:
    from rich.live import Live

    from slurm_elastic.cli.status_view import view

    with Live(auto_refresh=False) as live:
        try:
            while True:
                shown = document(run, time.time())
                live.update(view(shown, time.time()), refresh=True)
                if shown["done"] or shown["state"] in ("stopped", "failed"):
                    return
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return
