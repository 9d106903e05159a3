"""`slurm-elastic replay`: what was decided, why, and whether the decisions are the same today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.machine.actions import Action
    from slurm_elastic.machine.policy import Policy
    from slurm_elastic.machine.state import State
    from slurm_elastic.supervisor.journal import Entry


@click.command("replay")
@click.argument("journal", type=click.Path(path_type=Path))
@click.option(
    "--policy", "settings", type=click.Path(path_type=Path), help="run.yaml to decide by (default: the run's)."
)
@click.option("--until", type=click.IntRange(min=0), help="Stop after this many entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per decision.")
@click.option("-v", "--verbose", is_flag=True, help="Show events that led to no order, too.")
def replay(journal: Path, settings: Path | None, until: int | None, as_json: bool, verbose: bool) -> None:
    """Decide a run again from its JOURNAL (a journal file or a run directory) and compare.

    Exit code 1 when any order differs from the recorded one.
    """
    from slurm_elastic.machine.state import initial
    from slurm_elastic.machine.step import step

    path, policy = _sources(journal, settings)
    differing = decided = 0
    state: State | None = None
    for number, entry in enumerate(_entries(path), start=1):
        if until is not None and number > until:
            break
        state = _under(state or initial(entry.policy or policy), entry, policy if settings else None)
        if entry.event is None:
            if entry.policy is None:
                raise _no_journal(path, f"line {number} has neither an event nor a policy")
            continue
        decided += 1
        state, actions = step(state, entry.event, entry.time)
        differs = actions != entry.actions
        differing += differs
        if actions or differs or verbose:
            _show(number, entry, actions, state, as_json=as_json)
    if state is None and until != 0:
        raise _no_journal(path, "it has no whole entry")
    if differing:
        click.echo(f"{differing} of {decided} entries were decided differently", err=True)
        raise SystemExit(1)
    if not as_json:
        click.echo(f"{decided} entries decided again: every order as recorded")


def _entries(path: Path) -> Iterator[Entry]:
    """Of a journal. Raises UserMistake for another file, RunDirectoryError for a journal that is damaged."""
    from slurm_elastic.errors import RunDirectoryError
    from slurm_elastic.supervisor.journal import read

    any_yet = False
    try:
        for entry in read(path):
            any_yet = True
            yield entry
    except RunDirectoryError as broken:
        if any_yet:
            raise
        raise _no_journal(path, "its first line is no entry of one") from broken


def _no_journal(path: Path, why: str) -> UserMistake:
    from slurm_elastic.errors import UserMistake

    return UserMistake(f"{path} is not a journal: {why}", fix="give a run directory or its journal.jsonl")


def _sources(journal: Path, settings: Path | None) -> tuple[Path, Policy]:
    """The journal's path and the policy for entries before any that the journal itself names."""
    from slurm_elastic.config import load
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.machine.policy import Policy, policy_of

    path = journal / "journal.jsonl" if journal.is_dir() else journal
    if not path.is_file():
        raise UserMistake(f"no journal at {path}", fix="give a run directory or its journal.jsonl")
    chosen = settings or path.parent / "run.yaml"
    if settings is None and not chosen.exists():
        return path, Policy(allowed_nodes=(1,), max_nodes=1)
    return path, policy_of(load(chosen))


def _under(state: State, entry: Entry, forced: Policy | None) -> State:
    from msgspec.structs import replace

    policy = forced or entry.policy
    return state if policy is None else replace(state, policy=policy)


def _show(number: int, entry: Entry, actions: tuple[Action, ...], state: State, *, as_json: bool) -> None:
    from msgspec import to_builtins

    if as_json:
        shown: dict[str, Any] = {
            "entry": number,
            "time": entry.time,
            "event": to_builtins(entry.event),
            "actions": to_builtins(actions),
            "recorded": to_builtins(entry.actions) if actions != entry.actions else None,
            "phase": state.phase,
            "generation": state.generation,
            "reason": state.reason,
        }
        click.echo(json.dumps(shown))
        return
    when = datetime.fromtimestamp(entry.time, tz=UTC).strftime("%H:%M:%S")
    click.echo(f"{number:5} {when} {state.phase:9} gen {state.generation:<3} {words_of(to_builtins(entry.event))}")
    for action in actions:
        click.echo(f"        {'=' if action in entry.actions else '+'} {words_of(to_builtins(action))}")
    for action in entry.actions:
        if action not in actions:
            click.echo(f"        - {words_of(to_builtins(action))} (recorded, not decided now)")
    if actions:
        click.echo(f"          because: {state.reason}")


def words_of(thing: dict[str, Any]) -> str:
    """An event or an action on one line: its name, then its fields."""
    name = thing.get("event") or thing.get("action")
    fields = " ".join(f"{k}={_short(v)}" for k, v in thing.items() if k not in ("event", "action"))
    return f"{name} {fields}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_short(v) for v in value) + "]"
    if isinstance(value, dict):
        return str(value["node"]) if "node" in value else json.dumps(value, separators=(",", ":"))
    return str(value)
