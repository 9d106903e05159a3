"""The batch jobs of a run: which options they are submitted with, and their scripts in <run>/jobs/.

Every job of a run carries "slurm-elastic:<run id>:<token>" as its comment. The run id keeps the runs of one user apart;
the token names one submission, so that it can be found again when sbatch's answer was lost.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass

from slurm_elastic.config_model import RunConfig
from slurm_elastic.rundir import RunDirectory, replace_text
from slurm_elastic.slurm.api import BatchRequest
from slurm_elastic.slurm.templates import Template, render
from slurm_elastic.units import slurm_time

# Seconds of notice before the time limit (also asked for at preemption, where the grace time decides).
BASE_NOTICE_S, COMPANION_NOTICE_S, LONGEST_NOTICE_S = 90, 60, 65_535
_MARGIN_S = 30

Options = dict[str, str | bool]


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job ready to be submitted: `text` belongs into `request.script`."""

    text: str
    request: BatchRequest

    def write(self) -> BatchRequest:
        """Put the script into <run>/jobs/, where it stays as a record of what was submitted."""
        replace_text(self.request.script, self.text)
        return self.request


def comment_prefix(run: RunDirectory) -> str:
    """Start of the comment of every job of this run; for `SlurmClient.jobs(token_prefix=...)`.

    The run id is a digest of the run's secret: unique, the same for ever, and it gives nothing away.
    """
    return f"slurm-elastic:{hashlib.sha256(b'run id' + run.read_token()).hexdigest()[:12]}:"


def comment_of(run: RunDirectory, token: str) -> str:
    """The comment of the job with this submit token."""
    return comment_prefix(run) + token


def token_of(run: RunDirectory, comment: str) -> str:
    """The submit token in a job's comment; "" for a job that is not of this run."""
    prefix = comment_prefix(run)
    return comment.removeprefix(prefix) if comment.startswith(prefix) else ""


def base_request(config: RunConfig, run: RunDirectory, token: str, *, python: str = sys.executable) -> BatchRequest:
    """The base job (with `layout: single`: the only job). Writes its script into <run>/jobs/."""
    return base_job(config, run, comment_of(run, token), token, python=python).write()


def companion_request(
    config: RunConfig, run: RunDirectory, base_job_id: int, nodes: int, token: str, *, python: str = sys.executable
) -> BatchRequest:
    """A companion of `nodes` nodes for the run whose base job is `base_job_id`. Writes its script into <run>/jobs/."""
    comment = comment_of(run, token)
    return companion_job(config, run, base_job_id, nodes, comment, token, python=python).write()


def base_job(config: RunConfig, run: RunDirectory, comment: str, token: str, *, python: str) -> BatchJob:
    """As `base_request`, without writing or reading anything."""
    single = config.run.layout == "single"
    nodes = (config.elastic.min_nodes, config.elastic.max_nodes) if single else (config.base.nodes, config.base.nodes)
    options: Options = {
        **_identity(config, config.run.name),
        **_size(config, *nodes),
        "qos": (single and config.elastic.qos) or config.base.qos,
        "partition": (single and config.elastic.partition) or config.base.partition,
        "time": _time((config.elastic.time if single else None) or config.base.time),
        **_common(config, run, comment, BASE_NOTICE_S),
        "requeue": True,
    }
    template: Template = "mpi" if config.run.launcher == "mpi" else "single" if single else "base"
    return _job(config, template, options, run, comment, token, python)


def companion_job(
    config: RunConfig, run: RunDirectory, base_job_id: int, nodes: int, comment: str, token: str, *, python: str
) -> BatchJob:
    """As `companion_request`, without writing or reading anything."""
    elastic = config.elastic
    options: Options = {
        **_identity(config, f"{config.run.name}-companion-of-{base_job_id}"),
        **_size(config, nodes, nodes),
        "qos": elastic.qos or config.base.qos,
        "partition": elastic.partition or config.base.partition,
        "time": _time(elastic.time or config.base.time),
        **_common(config, run, comment, COMPANION_NOTICE_S),
        "no-requeue": True,
    }
    return _job(config, "companion", options, run, comment, token, python)


def _identity(config: RunConfig, name: str) -> Options:
    return {"job-name": name, "account": config.base.account}


def _size(config: RunConfig, fewest: int, most: int) -> Options:
    """Nodes are taken whole unless the CPUs per worker are told: then only these."""
    base = config.base
    if most == 0:  # a master without training: one task on one node
        return {"nodes": "1", "ntasks": "1"}
    size: Options = {"nodes": str(most) if fewest == most else f"{fewest}-{most}"}
    if base.cpus_per_worker:
        size["ntasks-per-node"] = str(config.workers_per_node)
        size["cpus-per-task"] = str(base.cpus_per_worker)
    else:
        size["exclusive"] = True
    if base.gpus_per_node:
        size["gres"] = f"gpu:{base.gpus_per_node}"
    if most > 1:
        size["no-kill"] = True
    return size


def notice_before_limit_s(config: RunConfig, least_s: int) -> int:
    """How long before its time limit a job is told, so that its workers can save and leave."""
    drain_s = math.ceil(config.elastic.graceful_shutdown_timeout) + _MARGIN_S
    return min(LONGEST_NOTICE_S, max(least_s, drain_s))


def _common(config: RunConfig, run: RunDirectory, comment: str, notice_s: int) -> Options:
    return {
        "chdir": str(run.path),
        "output": f"{str(run.logs).replace('%', '%%')}/slurm-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{notice_before_limit_s(config, notice_s)}",
        "comment": comment,
    }


def _time(seconds: float | None) -> str:
    return slurm_time(seconds) if seconds else ""


def _job(
    config: RunConfig,
    template: Template,
    options: Options,
    run: RunDirectory,
    comment: str,
    token: str,
    python: str,
) -> BatchJob:
    """The user's own options come last: they win where config.py lets them through."""
    options = {name: value for name, value in {**options, **config.base.sbatch}.items() if value}
    text = render(template, options, {"run_dir": str(run.path), "python": python})
    script = run.jobs / f"{token}.sbatch"
    return BatchJob(text, BatchRequest(script=script, options=options, token=comment))
