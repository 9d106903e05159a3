"""`python -m slurm_elastic.supervisor --run-dir DIR`: started by the keeper of the base job, never by people."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys
from pathlib import Path

import click

from slurm_elastic import config_kept
from slurm_elastic.agent.death import die_with_parent
from slurm_elastic.agent.keeper import exit_code_of
from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.slurm.command_client import CommandSlurm
from slurm_elastic.supervisor.address import choose_address
from slurm_elastic.supervisor.assembly import Surroundings, supervise
from slurm_elastic.supervisor.lease import Claimant

log = logging.getLogger(__name__)

MOST_DESCRIPTORS = 32_768  # more connections than the wire takes


@click.command()
@click.option("--run-dir", type=click.Path(path_type=Path), required=True)
@click.option("--job-id", type=int, envvar="SLURM_JOB_ID", default=0, help="The base job.")
@click.option("--restart-count", type=int, envvar="SLURM_RESTART_COUNT", default=0)
def main(run_dir: Path, job_id: int, restart_count: int) -> None:
    """Supervise the run in RUN-DIR until it is over, a newer supervisor takes over, or this one fails."""
    die_with_parent()
    _allow_connections()
    run = RunDirectory(run_dir)
    try:
        run.check_safe()
        logging.basicConfig(
            filename=run.logs / "supervisor.log",
            level=logging.INFO,
            format=f"%(asctime)s %(levelname)s {socket.gethostname()}[{os.getpid()}] %(name)s %(message)s",
        )
        config, problem = config_kept.load_of_run(run)
        if not problem:
            config_kept.keep(run, config)
        around = Surroundings(
            run=run,
            config=config,
            slurm=CommandSlurm(),
            claimant=Claimant(node=socket.gethostname(), pid=os.getpid(), job_id=job_id, restart_count=restart_count),
            host=choose_address(config.control.interface),
            settings_problem=problem,
        )
        sys.exit(asyncio.run(supervise(around)))
    except SlurmElasticError as problem:
        log.error("%s", problem)
        with contextlib.suppress(OSError):  # the job's output may lie on a full disk
            click.echo(str(problem), err=True)
        sys.exit(exit_code_of(problem))


def _allow_connections() -> None:
    """One open file per worker: the usual soft limit of 1,024 is soon too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
