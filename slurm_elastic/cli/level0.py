"""What `level0.sbatch` calls inside its job: a run directory for a torchrun-style command, without a run.yaml."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from slurm_elastic.config_model import Base, Elastic, Run, RunConfig
from slurm_elastic.errors import SlurmElasticError

_UNNAMED = "level0"


def settings_of_job(environ: Mapping[str, str], run_dir: Path, workdir: Path, command: Sequence[str]) -> RunConfig:
    """One preemptible job of its own size, whatever size the next start has. `*.py` alone means `python *.py`."""
    words = tuple(command)
    if words and words[0].endswith(".py"):
        words = ("python", *words)
    gpus = int(environ.get("SLURM_GPUS_ON_NODE", "0") or 0)
    return RunConfig(
        run=Run(name=_UNNAMED, dir=str(run_dir), command=words, workdir=str(workdir), layout="single"),
        base=Base(gpus_per_node=gpus),
        elastic=Elastic(min_nodes=1, max_nodes=max(1, int(environ.get("SLURM_JOB_NUM_NODES", "1")))),
    )


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--run-dir", type=click.Path(path_type=Path), required=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(run_dir: Path, command: tuple[str, ...]) -> None:
    """Make RUN-DIR for COMMAND from this job's environment, unless an earlier start of the job did."""
    from slurm_elastic import config
    from slurm_elastic.rundir import RunDirectory, replace_text

    run = RunDirectory(run_dir.absolute())
    run.create()
    fresh = settings_of_job(os.environ, run.path, Path.cwd(), command)
    text = config.dump(fresh)
    config.loads(text, run.config)  # a command that the settings refuse is refused here, not by the supervisor
    if not run.config.exists():
        replace_text(run.config, text)


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except SlurmElasticError as wrong:
        click.echo(f"error: {wrong}", err=True)
        sys.exit(wrong.exit_code)
    except click.ClickException as wrong_flag:
        wrong_flag.show()
        sys.exit(wrong_flag.exit_code)
