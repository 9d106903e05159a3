"""`python -m slurm_elastic.agent.shim ... -- COMMAND`: the task of an srun step, from its start to the user's script.

Log file and signals first, then the imports, then the gate, then the ranks' environment, then the user's command.
"""

from __future__ import annotations

import _thread
import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.agent import script
from slurm_elastic.agent.death import adopt_orphans, die_with_parent
from slurm_elastic.agent.gate import Waiting, rank_environment, tell_notice, wait_at_gate
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.signals import Notices
from slurm_elastic.wire import messages as m

SENT_AWAY = 75  # exit code (EX_TEMPFAIL) of a worker that got no ranks; not 0: nothing was trained
CANNOT_RUN = 127


def main(arguments: Sequence[str] | None = None) -> int:
    notices = Notices.of_this_process()  # kept until the connection at the gate can tell them
    die_with_parent()
    adopt_orphans()
    options = _parser().parse_args(arguments)
    who = _waiting(options)
    _log_to(who.run_dir.worker_log(who.generation, who.node, who.local_rank))
    if options.cpus:  # before torch is imported: it reads this once
        os.environ.setdefault("OMP_NUM_THREADS", str(options.cpus))
    in_process = script.is_python(options.command)
    if in_process and (failed := script.warm_up(os.environ)):
        print(f"slurm-elastic: not imported ahead: {', '.join(failed)}", file=sys.stderr)
    gate = wait_at_gate(who, notices)
    if not isinstance(gate, m.Gate):
        print(f"slurm-elastic: generation {who.generation} does not start here: {gate}", file=sys.stderr)
        return SENT_AWAY
    os.environ.update(rank_environment(who, gate, options.run_id, options.max_restarts))
    if in_process:
        # for scripts without our library, which listens itself; a handler must not wait for locks of `threading`
        notices.listen(lambda name: _thread.start_new_thread(tell_notice, (who, name)))
        script.leave(script.run_python(options.command))
    try:
        script.exec_command(options.command, os.environ)
    except OSError as broken:
        print(f"slurm-elastic: cannot run {options.command[0]!r}: {broken.strerror}", file=sys.stderr)
    return CANNOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm_elastic.agent.shim")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--job-id", type=int, required=True)
    parser.add_argument("--cpus", type=int, default=0)
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--give-up-after", type=float, default=900.0)
    parser.add_argument("--run-id", default="")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("command", nargs="+")
    return parser


def _waiting(options: argparse.Namespace) -> Waiting:
    """Slurm says per task where it is; all else is in the arguments."""
    return Waiting(
        run_dir=RunDirectory(options.run_dir),
        generation=options.generation,
        node=os.environ["SLURMD_NODENAME"],
        local_rank=int(os.environ["SLURM_LOCALID"]),
        job_id=options.job_id,
        heartbeat_s=options.heartbeat,
        give_up_after_s=options.give_up_after,
    )


def _log_to(path: Path) -> None:
    """Both outputs, also of what is started from here, go to this worker's own file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
