"""`slurm-elastic stop RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_elastic.rundir import RunDirectory

LONGEST_WAIT = "10m"


@click.command()
@click.argument("run", metavar="RUN|JOBID")
@click.option("--wait", is_flag=True, help="Return when the run has ended.")
@click.option("--timeout", default=LONGEST_WAIT, show_default=True, metavar="T", help="How long --wait waits.")
def stop(run: str, wait: bool, timeout: str) -> None:
    """Save RUN, end it and all its jobs. `slurm-elastic submit` resumes it from there.

    A base job that has not started is cancelled.

    \b
    Examples:
      slurm-elastic stop runs/gpt
      slurm-elastic stop 4711 --wait --timeout 2m
    \b
    Exit codes: 0 asked for (--wait: ended), 1 not taken or not ended in time, 2 no such run, or it is over
    """
    from slurm_elastic.cli.find_run import find_run
    from slurm_elastic.cli.requests import ask, refuse_if_left, refuse_if_over, wait_until
    from slurm_elastic.cli.submitted import not_reported
    from slurm_elastic.errors import RequestNotTaken
    from slurm_elastic.observe.status import OVER, read_status
    from slurm_elastic.units import parse_duration

    try:
        timeout_s = parse_duration(timeout)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--timeout") from wrong
    found = find_run(run)
    refuse_if_over(found)
    status = read_status(found.status)
    if (status is None or not_reported(found) is not None) and _cancelled(found):
        return
    if status is not None and not_reported(found) is None:
        refuse_if_left(found, status)
    ask(found, {"ask": "stop"})
    if not wait:
        step = status.step if status else 0
        click.echo(f"asked to stop at step {step} or the next boundary; --wait would wait for the end")
        return

    def ended() -> bool:
        now = read_status(found.status)
        return found.done.exists() or (now is not None and now.state in OVER and not_reported(found) is None)

    if not wait_until(ended, timeout_s):
        raise RequestNotTaken(f"the run has not ended within {timeout}", fix=f"`slurm-elastic status {run}` shows why")
    last = read_status(found.status)
    if last is not None:
        saved = last.checkpoint.step if last.checkpoint else 0
        click.echo(f"{last.state}: {last.reason}; last checkpoint at step {saved}")


def _cancelled(run: RunDirectory) -> bool:
    """Whether a base job that had not started is cancelled now. False: it runs, its supervisor is about to report.

    Slurm is asked by the run's mark, so that a job that was submitted by hand is found, too.
    """
    from msgspec.structs import replace

    from slurm_elastic.cli.submitted import base_jobs, never_began, read_submitted, record
    from slurm_elastic.errors import SlurmError, UserMistake
    from slurm_elastic.slurm import command_client
    from slurm_elastic.slurm.states import Meaning, meaning

    slurm = command_client.CommandSlurm()
    try:
        left = base_jobs(run, slurm)
    except SlurmError as away:
        if not never_began(run):
            raise
        raise UserMistake(
            f"the run {run.path} was never submitted by `slurm-elastic submit`: as far as is known here, there is"
            " nothing to stop (Slurm cannot be asked)",
            fix="if its script was submitted by hand, stop it where Slurm can be asked",
        ) from away
    waiting = [job for job in left if meaning(job.state) is Meaning.WAITING]
    if not left:
        raise UserMistake(
            f"the run {run.path} has no base job in Slurm's queue: there is nothing to stop",
            fix=f"`slurm-elastic submit {run.path}` starts it",
        )
    for job in waiting:
        slurm.cancel(job.job_id)
        click.echo(f"cancelled base job {job.job_id}, which had not started")
    submitted = read_submitted(run)
    if submitted is not None and submitted.job_id in [job.job_id for job in waiting]:
        record(run, replace(submitted, cancelled=True))
    return len(waiting) == len(left)
