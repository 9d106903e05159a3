"""Faults to put into a testbed, and how to take each away again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import slurm_elastic
from slurm_elastic.errors import TestbedError, UserMistake
from slurm_elastic.testbed.access import Access
from slurm_elastic.testbed.bringup import write_slurm_conf
from slurm_elastic.testbed.daemons import descendants
from slurm_elastic.testbed.options import Notice, Options, PreemptMode
from slurm_elastic.testbed.place import write_marker
from slurm_elastic.testbed.processes import Running, recorded, running, start

BALLAST = "ballast"
BALLAST_STEP = 1 << 20


class Faults(Access):
    """Each method returns when the fault is in place. Faults of nodes need root (not --rootless)."""

    def kill_node(self, node: str) -> None:
        """The node loses power: nothing more leaves it, every process on it dies."""
        self._needs_nodes()
        self.options.node_index(node)  # (refuses a name that is none of ours)
        self.nodes.kill(node)

    def revive_node(self, node: str, *, timeout_s: float = 90) -> None:
        """Boot a node (again); returns when the controller sees it as usable."""
        self._needs_nodes()
        self.nodes.end(node)
        self.nodes.boot(node, fresh=True)
        # A controller that never missed the node calls it reachable before it is up again.
        self.wait_until(lambda: self.nodes.is_up(node) and self._reachable(node), timeout_s, f"{node} back")

    def cut_network(self, node: str) -> None:
        """Nothing reaches the node or leaves it; its processes go on."""
        self._needs_nodes()
        self.nodes.cut(node)

    def heal_network(self, node: str) -> None:
        self._needs_nodes()
        self.nodes.heal(node)

    def suspend_job(self, job: int) -> None:
        self.tell("scontrol", "suspend", str(job))

    def resume_job(self, job: int) -> None:
        self.tell("scontrol", "resume", str(job))

    def drain_node(self, node: str, reason: str = "testbed") -> None:
        """No new jobs on the node; those that run go on."""
        self._update_node(node, "State=DRAIN", f"Reason={reason}")

    def fail_node(self, node: str, reason: str = "testbed") -> None:
        """As an operator marks a node that is about to fail."""
        self._update_node(node, "State=FAIL", f"Reason={reason}")

    def undrain_node(self, node: str) -> None:
        """Takes `drain_node` and `fail_node` away."""
        self._update_node(node, "State=RESUME")

    def stop_controller(self, *, kill: bool = False) -> None:
        self.hurry_controller()
        self.daemons.stop_controller(kill=kill)

    def start_controller(self) -> None:
        self.daemons.start_controller()

    def slow_controller(self, pause_s: float = 2.0) -> None:
        """The controller sleeps `pause_s` after every 0.05 s of work, so that answers take up to that long."""
        self.hurry_controller()
        controller = self.daemons.controller()
        if controller is None or not controller.alive:
            raise TestbedError(
                "the controller is not running", fix=f"`slurm-elastic testbed fault start-controller{self.place.flags}`"
            )
        package = str(Path(slurm_elastic.__file__).parents[1])
        argv = [sys.executable, "-m", "slurm_elastic.testbed.pauses", str(controller.pid), str(controller.start)]
        pauses = start(
            [*argv, str(pause_s)],
            log=self.place.console("slow"),
            pidfile=self.place.pidfile("slow"),
            environ={**self.daemon_environ, "PYTHONPATH": package},
        )
        self.wait_until(lambda: controller.stopped or not pauses.alive, 60, "a slow controller")

    def hurry_controller(self) -> None:
        """Takes `slow_controller` away."""
        path = self.place.pidfile("slow")
        slow = recorded(path)
        if slow is not None:
            slow.stop(patience_s=5)
            path.unlink(missing_ok=True)
        controller = self.daemons.controller()
        if controller is not None:
            controller.signal(signal.SIGCONT)

    def workers(
        self, node: str | None = None, *, job: int | None = None, local_rank: int | None = None
    ) -> tuple[Running, ...]:
        """Tasks of job steps (not batch scripts, nor a run's deputies), the oldest step first."""
        conf = str(self.place.slurm_conf)
        is_there = self._on(node)
        everything = list(running())
        daemons = {one.process.pid for one in everything if one.name.startswith("slurmstepd")}
        found = [
            one
            for one in everything
            if one.parent in daemons
            and one.environ.get("SLURM_CONF") == conf
            and one.environ.get("SLURM_STEP_ID", "").isdigit()
            and "slurm_elastic.agent.deputy" not in one.arguments
            and is_there(one)
            and (job is None or one.environ.get("SLURM_JOB_ID") == str(job))
            and (local_rank is None or one.environ.get("SLURM_LOCALID") == str(local_rank))
        ]
        return tuple(sorted(found, key=_age))

    def kill_worker(self, node: str, *, job: int | None = None, local_rank: int | None = None) -> int:
        """SIGKILL for one worker of a node, of the oldest step there; its pid on the host."""
        worker = self._a_worker(node, job, local_rank)
        worker.process.signal(signal.SIGKILL)
        return worker.process.pid

    def freeze_worker(self, node: str, *, job: int | None = None, local_rank: int | None = None) -> int:
        """SIGSTOP for one worker and all below it; its pid on the host."""
        return self._signal_tree(self._a_worker(node, job, local_rank), signal.SIGSTOP)

    def thaw_worker(self, node: str | None = None) -> None:
        """SIGCONT for all workers (of a node)."""
        for worker in self.workers(node):
            self._signal_tree(worker, signal.SIGCONT)

    def kill_supervisor(self, run_dir: Path | str | None = None) -> int:
        """SIGKILL for the supervisor (of a run); its pid on the host."""
        return self.kill_program("slurm_elastic.supervisor", run_dir=run_dir)

    def kill_agent(self, node: str, run_dir: Path | str | None = None) -> int:
        """SIGKILL for the agent that runs on a node; its pid on the host."""
        return self.kill_program("slurm_elastic.agent", node=node, run_dir=run_dir)

    def programs(
        self, module: str, *, node: str | None = None, run_dir: Path | str | None = None
    ) -> tuple[Running, ...]:
        """Processes of this testbed's jobs started as `python -m MODULE`, the oldest first."""
        conf = str(self.place.slurm_conf)
        is_there = self._on(node)
        found = [
            one
            for one in running()
            if ("-m", module) in zip(one.arguments, one.arguments[1:], strict=False)
            and one.environ.get("SLURM_CONF") == conf
            and is_there(one)
            and (run_dir is None or str(run_dir) in one.arguments)
        ]
        return tuple(sorted(found, key=lambda one: one.process.start))

    def kill_program(self, module: str, *, node: str | None = None, run_dir: Path | str | None = None) -> int:
        """SIGKILL for the oldest process of a module in this testbed's jobs; its pid on the host."""
        found = self.programs(module, node=node, run_dir=run_dir)
        if not found:
            raise UserMistake(
                f"no {module} runs in this testbed",
                fix=f"look at `slurm-elastic testbed exec{self.place.flags} -- squeue`",
            )
        found[0].process.signal(signal.SIGKILL)
        return found[0].process.pid

    def fill_disk(self, *, leave_bytes: int = 0) -> int:
        """Fill the testbed's small disk (`place.disk`) but for `leave_bytes`; bytes taken."""
        self._needs_nodes()
        free = os.statvfs(self.place.disk)
        wanted = free.f_bavail * free.f_frsize - leave_bytes
        taken = 0
        with (self.place.disk / BALLAST).open("ab") as file:
            taken = file.tell()
            wanted += taken
            while taken < wanted:
                step = min(BALLAST_STEP, wanted - taken)
                try:
                    os.posix_fallocate(file.fileno(), taken, step)
                except OSError:
                    break  # full, as asked
                taken += step
        return taken

    def free_disk(self) -> None:
        (self.place.disk / BALLAST).unlink(missing_ok=True)

    def set_preemption(
        self, *, mode: PreemptMode | None = None, grace_s: int | None = None, notice: Notice | None = None
    ) -> None:
        """Change how elastic jobs are preempted from now on. Another notice restarts the controller."""
        options = replace(
            self.options,
            preempt_mode=mode or self.options.preempt_mode,
            grace_s=self.options.grace_s if grace_s is None else grace_s,
            notice=notice or self.options.notice,
        )
        restart = options.notice != self.options.notice or not options.accounting
        self._take_options(options)
        if options.accounting:
            self.accounting.set_preemption()
        if restart:
            self.stop_controller()
            self.start_controller()

    def _take_options(self, options: Options) -> None:
        """Make these the options of the testbed, in its files too."""
        write_marker(self.place, options)
        write_slurm_conf(self.place, options)
        self._options = options

    def _on(self, node: str | None) -> Callable[[Running], bool]:
        """Whether a process is on a node (None: on any)."""
        if node is None:
            return lambda one: True
        if self.options.rootless:
            return lambda one: one.environ.get("SLURMD_NODENAME") == node
        pids = frozenset(self.node_pids(node))
        return lambda one: one.process.pid in pids

    def _a_worker(self, node: str, job: int | None, local_rank: int | None) -> Running:
        self.options.node_index(node)
        found = self.workers(node, job=job, local_rank=local_rank)
        if not found:
            raise UserMistake(
                f"no such worker on {node}", fix=f"look at `slurm-elastic testbed exec{self.place.flags} -- squeue -s`"
            )
        return found[0]

    def _signal_tree(self, worker: Running, number: signal.Signals) -> int:
        for one in (worker, *descendants(list(running()), [worker])):
            one.process.signal(number)
        return worker.process.pid

    def _update_node(self, node: str, *fields: str) -> None:
        self.options.node_index(node)
        self.tell("scontrol", "update", f"NodeName={node}", *fields)

    def _reachable(self, node: str) -> bool:
        state = self.node_states().get(node, "")
        return state != "" and not state.endswith("*") and not state.startswith(("down", "unknown"))

    def _needs_nodes(self) -> None:
        if self.options.rootless:
            raise UserMistake("a rootless testbed cannot do this: its nodes are processes", fix="use one without")


def _age(worker: Running) -> tuple[int, int, int]:
    values = worker.environ
    return int(values.get("SLURM_JOB_ID", 0)), int(values["SLURM_STEP_ID"]), int(values.get("SLURM_PROCID", 0))
