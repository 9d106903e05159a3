"""The command `slurm-elastic`. Subcommands are imported when they are used, so that --help stays fast."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from slurm_elastic.errors import ConfigError, SlurmElasticError

# name -> (module:object, what it does); in the order of use
COMMANDS = {
    "init": ("slurm_elastic.cli.init:init", "Write a commented run.yaml to start from."),
    "check": ("slurm_elastic.cli.check:check", "Test a run.yaml, also against the live cluster."),
    "sizes": ("slurm_elastic.cli.sizes:sizes", "Show the allowed sizes of a run.yaml and the batch plan at each."),
    "submit": ("slurm_elastic.cli.submit:submit", "Start a run: submit its base job."),
    "status": ("slurm_elastic.cli.status:status", "Show your runs, or one run with its nodes, progress and problems."),
    "events": ("slurm_elastic.cli.events:events", "Show what happened in a run, and why."),
    "scale": ("slurm_elastic.cli.scale:scale", "Ask a run for another number of nodes."),
    "stop": ("slurm_elastic.cli.stop:stop", "Save, end a run and all its jobs."),
    "replay": ("slurm_elastic.cli.replay:replay", "Feed a journal through the decision machine again."),
    "plan": ("slurm_elastic.cli.plan:plan", "Show what a transition would move, before it is made."),
    "testbed": ("slurm_elastic.cli.testbed:testbed", "A real Slurm cluster on this machine, with faults to inject."),
    "demo": ("slurm_elastic.cli.demo:demo", "A day in the life of an elastic training, on the testbed."),
}

EXAMPLES = """\b
Examples:
  slurm-elastic init                      writes run.yaml
  slurm-elastic check run.yaml            every fault at once, with its line
  slurm-elastic submit run.yaml           starts the run
  slurm-elastic status --watch            how your runs go
  slurm-elastic scale RUN --nodes 6       another size, now
  slurm-elastic testbed up                a cluster on this machine to try it on

\b
Tab completion:  eval "$(_SLURM_ELASTIC_COMPLETE=bash_source slurm-elastic)"    (or zsh_source, fish_source)
Exit codes:      0 done, 1 failed, 2 wrong flag, file or value (nothing was started), 3 Slurm refused or is away
"""

PROGRAM = "slurm-elastic"
TRACEBACK_VARIABLE = "SLURM_ELASTIC_TRACEBACK"
_log = logging.getLogger("slurm_elastic")


class LazyGroup(click.Group):
    """Knows its commands by name; imports one only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{name} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(COMMANDS)}"
            ctx.fail(f"no command {name[:60]!a}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"{PROGRAM} {version(PROGRAM)}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option("-v", "--verbose", count=True, help="Log what is done; -vv also details and tracebacks.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def cli(verbose: int) -> None:
    """Elastic PyTorch training on stock Slurm: shrink, grow and survive while the run goes on."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Errors are printed on stderr, never as a traceback."""
    try:
        result: Any = cli.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except SlurmElasticError as error:
        _print_error(error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130
    except Exception as error:  # noqa: BLE001 - the rim: nobody above could print it
        return _unexpected(error)
    return result if isinstance(result, int) else 0


def _print_error(error: SlurmElasticError) -> None:
    """A settings file's faults begin with file:line, as editors want it; all else with `error:`."""
    from slurm_elastic.cli.no_slurm import for_people

    problem, fix = for_people(error)
    head = "" if isinstance(error, ConfigError) else "error: "
    click.echo(_printable(f"{head}{problem}"), err=True)
    click.echo(_printable(f"  fix: {fix}"), err=True)


def _unexpected(error: Exception) -> int:
    _log.debug("unexpected error", exc_info=error)
    if os.environ.get(TRACEBACK_VARIABLE) and not _log.isEnabledFor(logging.DEBUG):
        _log.error("unexpected error", exc_info=error)
    said = " ".join(str(error).split())[:300]
    click.echo(_printable(f"error: {type(error).__name__}: {said}"), err=True)
    click.echo(f"  fix: this is a bug; `{PROGRAM} -vv ...` shows the traceback for a report", err=True)
    return 1


def _printable(text: str) -> str:
    """What any terminal can take: paths may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def main() -> None:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
