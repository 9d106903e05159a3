"""`slurm-elastic stop RUN`."""

from __future__ import annotations

import click

LONGEST_WAIT = "10m"


@click.command()
@click.argument("run", metavar="RUN|JOBID")
@click.option("--wait", is_flag=True, help="Return when the run has ended.")
@click.option("--timeout", default=LONGEST_WAIT, show_default=True, metavar="T", help="How long --wait waits.")
def stop(run: str, wait: bool, timeout: str) -> None:
    """Save RUN, end it and all its jobs. `slurm-elastic submit` resumes it from there.

    \b
    Examples:
      slurm-elastic stop runs/gpt
      slurm-elastic stop 4711 --wait --timeout 2m
    \b
    Exit codes: 0 asked for (--wait: ended), 1 not taken or not ended in time, 2 no such run, or it is over
    """
    from slurm_elastic.cli.requests import ask, running, wait_until
    from slurm_elastic.errors import RequestNotTaken
    from slurm_elastic.observe.status import read_status
    from slurm_elastic.units import parse_duration

    try:
        timeout_s = parse_duration(timeout)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--timeout") from wrong
    found, status = running(run)
    ask(found, {"ask": "stop"})
    if not wait:
        click.echo(f"asked to stop at step {status.step} or the next boundary; --wait would wait for the end")
        return

    def ended() -> bool:
        now = read_status(found.status)
        return found.done.exists() or (now is not None and now.state in ("finished", "stopped", "failed"))

    if not wait_until(ended, timeout_s):
        raise RequestNotTaken(f"the run has not ended within {timeout}", fix=f"`slurm-elastic status {run}` shows why")
    last = read_status(found.status)
    if last is not None:
        saved = last.checkpoint.step if last.checkpoint else 0
        click.echo(f"{last.state}: {last.reason}; last checkpoint at step {saved}")
