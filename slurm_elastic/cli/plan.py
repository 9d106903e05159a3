"""`slurm-elastic plan`: a transition before it is made. Nothing is started and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_elastic.migrate.planner import Planned
    from slurm_elastic.migrate.problem import Problem


@click.command("plan")
@click.argument("layouts", nargs=-1, type=click.Path(path_type=Path), metavar="[FROM.json TO.json]")
@click.option("--cases", type=click.Path(path_type=Path), help="Plan the transition cases of this file instead.")
@click.option("--case", "wanted", metavar="ID", help="With --cases: only this case.")
@click.option("--bandwidth", default="10G", show_default=True, help="Bytes/s of a worker, and of a node's link.")
@click.option("--json", "json_wanted", is_flag=True, help="The plan itself: every step of every worker.")
def plan(layouts: tuple[Path, ...], cases: Path | None, wanted: str | None, bandwidth: str, json_wanted: bool) -> int:
    """Show who keeps, sends and receives what when training state moves from one layout to another.

    FROM.json and TO.json are layout files (docs/plan.md). The plan is the one that a run would carry out.

    \b
    Examples:
      slurm-elastic plan now.json then.json                  bytes per worker and per node link, expected time
      slurm-elastic plan now.json then.json --json           the plan
      slurm-elastic plan --cases cases.json --json           plans of all cases
      slurm-elastic plan --cases cases.json --case dp4-dp3   one case
    """
    per_second = _bandwidth(bandwidth)
    problems = _problems(layouts, cases, wanted)
    if json_wanted:
        from slurm_elastic.migrate.planner import as_json

        plans = {name: as_json(_made(cases, name, problem).plan) for name, problem in problems.items()}
        click.echo(json.dumps(plans[""] if cases is None else {"plans": plans}, separators=(",", ":")))
        return 0
    from slurm_elastic.cli.plan_view import show

    for name, problem in problems.items():
        if cases is not None:
            click.echo(f"case {name}")
        show(_made(cases, name, problem), per_second)
    return 0


def _problems(layouts: tuple[Path, ...], cases: Path | None, wanted: str | None) -> dict[str, Problem]:
    """By case id; a transition between layout files has none."""
    from slurm_elastic.errors import UserMistake

    if (cases is None) == (len(layouts) == 0) or len(layouts) not in (0, 2):
        raise UserMistake("give two layout files, or --cases FILE", fix="slurm-elastic plan FROM.json TO.json")
    if cases is not None:
        from slurm_elastic.migrate.casefile import read_cases

        return read_cases(cases, wanted)
    if wanted is not None:
        raise UserMistake("--case goes with --cases", fix="slurm-elastic plan --cases FILE --case ID")
    from slurm_elastic.migrate.layoutfile import read_transition

    return {"": read_transition(*layouts)}


def _made(cases: Path | None, name: str, problem: Problem) -> Planned:
    """The plan; a memory limit that it misses is said on stderr."""
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.migrate.planner import plan as make

    where = "" if cases is None else f"{cases}: case {name}: "
    try:
        made = make(problem)
    except UserMistake as mistake:
        raise UserMistake(f"{where}{mistake.problem}", fix=mistake.fix) from mistake
    most = problem.limits.peak_extra
    if most is not None and made.peak_extra > most:
        click.echo(f"{where}needs {made.peak_extra} bytes above before and after, peak_extra_bytes is {most}", err=True)
    return made


def _bandwidth(text: str) -> float:
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.units import parse_size

    try:
        value = parse_size(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise UserMistake(f"--bandwidth {text!r}: {error}", fix="such as 10G: bytes per second") from error
    if value <= 0:
        raise UserMistake(f"--bandwidth {text!r} must be above 0", fix="such as 10G: bytes per second")
    return float(value)
