"""`slurm-elastic submit`: make the run directory and submit the base job."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurm_elastic.config_model import RunConfig
    from slurm_elastic.rundir import RunDirectory
    from slurm_elastic.slurm.api import SlurmClient
    from slurm_elastic.slurm.run_jobs import BatchJob

_LEAVES_S, _LOOK_AGAIN_S = 30.0, 1.0


@click.command()
@click.argument("run_yaml", type=click.Path(path_type=Path, dir_okay=True), default="run.yaml", required=False)
@click.option("--dry-run", is_flag=True, help="Show the batch script and the sbatch command; touch nothing.")
@click.option("--prepare", is_flag=True, help="Make the run directory and the batch script, but submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def submit(run_yaml: Path, dry_run: bool, prepare: bool, as_json: bool) -> int:
    """Start the run that RUN_YAML (a file, or a run directory) describes.

    A run that was stopped, or whose base job is gone, goes on from its newest checkpoint. A run that is finished, or
    that is running, is refused.
    """
    from slurm_elastic import config
    from slurm_elastic.cli.settings_file import load_or_faults, settings_file
    from slurm_elastic.rundir import RunDirectory

    source = settings_file(run_yaml)
    settings = load_or_faults(source) if as_json else config.load(source)
    if isinstance(settings, list):
        click.echo(json.dumps({"faults": settings}))
        return 2
    run = RunDirectory(Path(settings.run.dir))
    _refuse_if_moved(run, source)
    if dry_run:
        _show_script(_dry(settings, run), as_json)
    else:
        _submit(settings, run, source, prepare, as_json)
    return 0


def _submit(settings: RunConfig, run: RunDirectory, source: Path, prepare: bool, as_json: bool) -> None:
    from slurm_elastic.cli.submitted import Submitted, last_epoch, never_began, one_at_a_time, record
    from slurm_elastic.errors import SlurmError
    from slurm_elastic.slurm.command_client import CommandSlurm

    slurm = CommandSlurm()
    _refuse_if_finished(run)
    if not prepare:
        _refuse_unknown_names(settings, slurm, source)
    _make_directory(run)
    with one_at_a_time(run):
        if any(run.jobs.iterdir()):  # a script of it was made before
            try:
                _refuse_if_running(run, slurm)
            except SlurmError:
                if not (prepare and never_began(run)):  # e.g. after a submit that found no Slurm
                    raise
        _keep_settings(settings, run, source)
        request = _base_job(settings, run).write()
        if prepare:
            facts: dict[str, str | int] = {"run_dir": str(run.path), "script": str(request.script)}
            _say(facts, as_json, f"sbatch {shlex.quote(str(request.script))}")
            return
        epoch = last_epoch(run)
        job_id = slurm.submit(request)
        record(run, Submitted(job_id=job_id, time=time.time(), after_epoch=epoch))
    _list(run)
    facts = {"job_id": job_id, "name": settings.run.name, "run_dir": str(run.path), "script": str(request.script)}
    _say(facts, as_json, _how_to_watch(run, job_id))


def _list(run: RunDirectory) -> None:
    """So that `status` finds it from anywhere; a home that cannot be written costs only that."""
    from slurm_elastic.observe.run_index import index_folder, remember

    try:
        remember(index_folder(os.environ), run.path)
    except OSError as broken:
        click.echo(f"note: `slurm-elastic status` will not list this run: {broken}", err=True)


def _refuse_if_moved(run: RunDirectory, source: Path) -> None:
    """Settings of a run directory whose run.dir names another one: its checkpoints would not be found."""
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.rundir import RunDirectory

    here = RunDirectory(source.resolve().parent)
    is_same = run.path.exists() and run.path.samefile(here.path)
    if source.name == here.config.name and here.token.exists() and not is_same:
        raise UserMistake(
            f"{here.path} is a run directory, but run.dir in its run.yaml names another: {run.path}",
            fix=f"set run.dir to {here.path} in {here.config} (also checkpoint.dir, if it lies in the old place),"
            f" or move the directory back to {run.path}",
        )


def _refuse_if_finished(run: RunDirectory) -> None:
    from slurm_elastic.errors import UserMistake

    if run.done.exists():
        raise UserMistake(
            f"the run in {run.path} is finished",
            fix="choose another run.dir for a new run (or remove DONE there to train on, with more steps)",
        )


def _refuse_unknown_names(settings: RunConfig, slurm: SlurmClient, source: Path) -> None:
    """Those of companions: a wrong name of the base job's is refused by sbatch, at once."""
    from slurm_elastic.cli.check_cluster import unknown_names
    from slurm_elastic.errors import UserMistake

    found = unknown_names(settings, slurm)
    if found:
        raise UserMistake(
            "\n".join(f"{each.key}: {each.message}" for each in found),
            fix=f"edit {source}; `slurm-elastic check {shlex.quote(str(source))}` asks Slurm about all of it",
        )


def _make_directory(run: RunDirectory) -> None:
    from slurm_elastic.errors import UserMistake

    try:
        run.create()
    except OSError as broken:
        raise UserMistake(
            f"cannot make the run directory {run.path}: {broken.strerror}", fix="check run.dir and your rights there"
        ) from broken


def _keep_settings(settings: RunConfig, run: RunDirectory, source: Path) -> None:
    """The run's own resolved run.yaml: relative paths would mean something else there."""
    from slurm_elastic import config, config_kept
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.rundir import replace_text

    config_kept.keep(run, settings)
    if source.resolve() == run.config.resolve():
        return
    header = f"# Settings of this run, from {str(source.resolve())!a}, with all defaults.\n"
    try:
        replace_text(run.config, header + config.dump(settings))
    except OSError as broken:
        raise UserMistake(
            f"cannot write {run.config}: {broken.strerror}", fix="check space and your rights there"
        ) from broken


def _refuse_if_running(run: RunDirectory, slurm: SlurmClient) -> None:
    """Raises UserMistake when a base job of this run may still run; SlurmUnknown when Slurm does not say.

    A run that has stopped is given a moment: Slurm needs it to see the end of the job.
    """
    from slurm_elastic.cli.submitted import BASE, not_reported
    from slurm_elastic.errors import UserMistake
    from slurm_elastic.observe.status import read_status
    from slurm_elastic.slurm.run_jobs import comment_of
    from slurm_elastic.slurm.states import Meaning, meaning

    where = shlex.quote(str(run.path))
    end = time.monotonic() + _LEAVES_S
    while True:
        jobs = slurm.jobs(token_prefix=comment_of(run, BASE))
        running = [job for job in jobs if meaning(job.state, requeue=job.requeue) is not Meaning.OVER]
        if not running:
            return
        status, first = read_status(run.status), running[0]
        waits = first.state == "PENDING"
        is_leaving = (
            status is not None and status.state in ("stopped", "failed") and not waits and not_reported(run) is None
        )
        if not is_leaving or time.monotonic() > end:
            how = "waits in the queue" if waits else "is running"
            raise UserMistake(
                f"the run in {run.path} {how} already: base job {first.job_id} is {first.state}",
                fix=f"see `slurm-elastic status {where}`; end it with `slurm-elastic stop {where}` first",
            )
        time.sleep(_LOOK_AGAIN_S)


def _base_job(settings: RunConfig, run: RunDirectory, run_id: str = "") -> BatchJob:
    from slurm_elastic.cli.submitted import BASE
    from slurm_elastic.slurm.run_jobs import base_job, comment_of

    token = BASE + secrets.token_hex(4)
    comment = f"slurm-elastic:{run_id}:{token}" if run_id else comment_of(run, token)
    return base_job(settings, run, comment, token, python=sys.executable)


def _dry(settings: RunConfig, run: RunDirectory) -> BatchJob:
    """Without a run directory there is no run id yet."""
    return _base_job(settings, run, run_id="" if run.token.exists() else "new")


def _show_script(job: BatchJob, as_json: bool) -> None:
    from slurm_elastic.slurm.command_client import sbatch_argv

    argv = sbatch_argv(job.request, "--parsable")
    if as_json:
        click.echo(json.dumps({"sbatch": argv, "script": job.text}))
        return
    click.echo(f"# {job.request.script}\n{job.text}\n# would be submitted with:\n{shlex.join(argv)}")


def _say(facts: dict[str, str | int], as_json: bool, words: str) -> None:
    click.echo(json.dumps(facts) if as_json else words)


def _how_to_watch(run: RunDirectory, job_id: int) -> str:
    where = shlex.quote(str(run.path))
    return f"submitted base job {job_id}\n  watch: slurm-elastic status {where} --watch\n  logs:  {where}/logs"
