"""`python -m slurm_elastic.agent`: started by the keeper, inside a batch job."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic import config_kept
from slurm_elastic.agent import leftovers, notices
from slurm_elastic.agent.agent import Agent, AgentSetup, Verdict
from slurm_elastic.agent.keeper import exit_code_of
from slurm_elastic.agent.steps import StepPlace, StepSpec
from slurm_elastic.config_model import RunConfig
from slurm_elastic.errors import SlurmElasticError, UserMistake
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.signals import hear_notices
from slurm_elastic.slurm import steps as srun
from slurm_elastic.slurm.command_client import CommandSlurm
from slurm_elastic.slurm.environment import scrubbed


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    run_dir = RunDirectory(options.run_dir.absolute())
    try:
        setup = _setup(run_dir, options.role, options.again)
    except SlurmElasticError as mistake:
        print(f"slurm-elastic agent: {mistake}", file=sys.stderr)
        return exit_code_of(mistake)
    agent = Agent(setup)
    hear_notices(agent.heard)
    verdict = agent.run()
    _report(options.report_fd, verdict)
    return verdict.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm_elastic.agent")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--role", choices=("base", "companion"), required=True)
    parser.add_argument("--again", action="store_true", help="an agent of this job ended unexpectedly before")
    parser.add_argument("--report-fd", type=int, default=-1, help="where the keeper reads the verdict")
    return parser


def _setup(run_dir: RunDirectory, role: str, again: bool) -> AgentSetup:
    run_dir.check_safe()
    settings, problem = config_kept.load_of_run(run_dir)
    try:
        allocation = notices.Allocation.of(os.environ)
    except KeyError as missing:
        raise UserMistake(f"{missing} is not set", fix="the agent runs inside a batch job; use `submit`") from missing
    logging.basicConfig(
        filename=run_dir.logs / f"agent-{allocation.job_id}.log", level=logging.INFO, format="%(asctime)s %(message)s"
    )
    if problem:
        logging.warning("%s", problem)
    environ = scrubbed(os.environ)
    if again:
        leftovers.kill_steps(allocation.job_id, environ)
    lookup = notices.lookup_of(CommandSlurm(), allocation.job_id)
    job = lookup()
    nodes = job.nodes if job and job.nodes else allocation.nodes
    return AgentSetup(
        run_dir=run_dir,
        role=role,
        job_id=allocation.job_id,
        nodes=nodes,
        qos=job.qos if job else allocation.qos,
        restart_count=allocation.restart_count,
        heartbeat_s=settings.control.heartbeat,
        give_up_after_s=settings.control.supervisor_timeout,
        notice=notices.at_start(job),
        lookup=lookup,
        specs_of=_specs_of(settings, run_dir, allocation),
        probe_argv=lambda node: srun.probe_argv(job_id=allocation.job_id, node=node),
        deputy=_deputy(run_dir, allocation.job_id, nodes) if role == "base" else None,
        place=StepPlace(run_dir, settings.run.workdir, {**environ, **settings.run.env}),
        sweep=lambda generation, nodes: leftovers.kill_steps(
            allocation.job_id, environ, name=f"gen-{generation:04d}", nodes=nodes
        ),
        environ=environ,
    )


def _deputy(run_dir: RunDirectory, job_id: int, nodes: tuple[str, ...]) -> StepSpec | None:
    """On another node of the base job than this one: it acts when this one dies. None when there is no other."""
    others = [node for node in nodes if node != os.environ.get("SLURMD_NODENAME", nodes[0])]
    if not others:
        return None
    command = (sys.executable, "-P", "-m", "slurm_elastic.agent.deputy", "--run-dir", str(run_dir.path))
    argv = srun.worker_step_argv(job_id=job_id, node=others[0], generation=0, workers=1, cpus=1, command=command)
    return StepSpec(0, (others[0],), argv)


def _specs_of(
    settings: RunConfig, run_dir: RunDirectory, allocation: notices.Allocation
) -> Callable[[int, tuple[str, ...]], tuple[StepSpec, ...]]:
    workers = settings.workers_per_node
    cpus = settings.base.cpus_per_worker or max(1, allocation.cpus_per_node // workers)
    gpus, job_id = settings.base.gpus_per_node, allocation.job_id

    def specs(generation: int, nodes: tuple[str, ...]) -> tuple[StepSpec, ...]:
        command = _shim_argv(settings, run_dir, job_id, generation, cpus)
        if settings.run.launcher == "mpi":
            argv = srun.mpi_step_argv(
                job_id=job_id,
                nodes=nodes,
                generation=generation,
                workers=workers,
                cpus=cpus,
                gpus=gpus,
                mpi=settings.run.mpi,
                command=command,
            )
            return (StepSpec(generation, nodes, argv),)
        return tuple(
            StepSpec(
                generation,
                (node,),
                srun.worker_step_argv(
                    job_id=job_id,
                    node=node,
                    generation=generation,
                    workers=workers,
                    cpus=cpus,
                    gpus=gpus,
                    command=command,
                ),
            )
            for node in nodes
        )

    return specs


def _shim_argv(settings: RunConfig, run_dir: RunDirectory, job_id: int, generation: int, cpus: int) -> tuple[str, ...]:
    return (
        # -P: what lies in the user's folder must not replace a module of the standard library here.
        *(sys.executable, "-P", "-m", "slurm_elastic.agent.shim"),
        *("--run-dir", str(run_dir.path), "--generation", str(generation), "--job-id", str(job_id)),
        *("--cpus", str(cpus), "--heartbeat", str(settings.control.heartbeat)),
        *("--give-up-after", str(settings.control.supervisor_timeout), "--run-id", settings.run.name),
        *("--max-restarts", str(settings.run.max_restarts)),
        *("--", *settings.run.command),
    )


def _report(descriptor: int, verdict: Verdict) -> None:
    if descriptor >= 0:
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            json.dump({"exit_code": verdict.exit_code, "final": verdict.final}, out)


if __name__ == "__main__":
    sys.exit(main())
