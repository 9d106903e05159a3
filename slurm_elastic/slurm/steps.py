"""The `srun` commands that start workers. Pure: they return argv; run it with `environment.scrubbed(...)`.

Numbers and nodes are always given, never inherited: what `SLURM_*` says is stale after a node was lost (srun would wait
for ever), and each release reads these variables differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.slurm.hostlist import fold

_STEP = (
    # Share the job's resources with other steps: after a node was lost, Slurm believes GPUs of the nodes behind it to
    # be in use, and a step without this waits for ever (22.05) or is refused (24.11). It also lets the next
    # generation warm up beside the one that still trains.
    "--overlap",
    # One worker that fails must end the step: the others would hang in a collective. The agent does that, at once: srun
    # would send SIGTERM, which workers take for a notice, and SIGKILL only KillWait (30 s) later.
    "--kill-on-bad-exit=0",
    # ... but one that finishes early does not: sites may set a WaitTime for that.
    "--wait=0",
    "--input=none",
)


def worker_step_argv(
    *,
    job_id: int,
    node: str,
    generation: int,
    workers: int,
    cpus: int,
    command: Sequence[str],
    gpus: int = 0,
    mpi: str = "none",
    output: str = "",
) -> tuple[str, ...]:
    """`workers` tasks with `cpus` CPUs each on one node of job `job_id`.

    One srun per node: one for several nodes may abort as a whole when one of them is lost, whatever --no-kill says.
    `gpus`: of the whole step, shared by its tasks. `output`: srun's file pattern; with %t the node itself writes it,
    without srun in between. See `output_pattern`.
    """
    return (
        *("srun", f"--jobid={job_id}", *_STEP, "--no-kill"),
        *("--nodes=1", f"--ntasks={workers}", f"--nodelist={node}"),
        *_resources(cpus, gpus),
        f"--mpi={mpi}",
        *_naming(generation, output),
        *command,
    )


def mpi_step_argv(
    *,
    job_id: int,
    nodes: Sequence[str],
    generation: int,
    workers: int,
    cpus: int,
    command: Sequence[str],
    gpus: int = 0,
    mpi: str = "pmix",
    output: str = "",
) -> tuple[str, ...]:
    """One MPI world over `nodes`, `workers` ranks per node in node order; `gpus` per node.

    Without --no-kill: ranks that lost a peer hang in their collective for ever, so Slurm may well end them all.
    """
    return (
        *("srun", f"--jobid={job_id}", *_STEP),
        *(f"--nodes={len(nodes)}", f"--ntasks={workers * len(nodes)}", f"--ntasks-per-node={workers}"),
        *(f"--nodelist={fold(nodes)}", "--distribution=block"),
        *_resources(cpus, gpus),
        f"--mpi={mpi}",
        *_naming(generation, output),
        *command,
    )


def probe_argv(*, job_id: int, node: str) -> tuple[str, ...]:
    """A trivial step on one node: succeeds when the node can start processes. Give it a deadline of your own."""
    return (
        *("srun", f"--jobid={job_id}", *_STEP, "--no-kill", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *("--cpus-per-task=1", "--gres=none", "--mpi=none", "--job-name=probe", "true"),
    )


def output_pattern(path: str) -> str:
    """`path` for `output=`, with its percent signs meant literally. Append "-%t" and the like after this."""
    return path.replace("%", "%%")


def _resources(cpus: int, gpus: int) -> tuple[str, ...]:
    # Since 22.05 srun does not take the job's --cpus-per-task: without -c every worker gets one core.
    # The site's binding is left alone: it was chosen for its nodes, and scrubbing has removed the batch step's.
    return (f"--cpus-per-task={cpus}", *([f"--gres=gpu:{gpus}"] if gpus else []))


def _naming(generation: int, output: str) -> tuple[str, ...]:
    name = f"--job-name=gen-{generation:04d}"
    return (name, f"--output={output}", "--open-mode=append") if output else (name,)
