"""A testbed that is up, seen by those who use it: run commands in it, wait for it, ask about jobs and nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import commands, processes
from slurm_elastic.testbed.accounting import Accounting
from slurm_elastic.testbed.daemons import Daemons
from slurm_elastic.testbed.nodes import Nodes
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.packages import SYSTEM_PATH, search_path
from slurm_elastic.testbed.place import Place

FOREIGN = ("SLURM", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT", "SCONTROL_", "PMI", "MUNGE")


class Access:
    """Commands, jobs and nodes of a testbed. Every wait is bounded; times in seconds."""

    def __init__(self, place: Place, options: Options) -> None:
        self._place = place
        self._options = options

    @property
    def place(self) -> Place:
        return self._place

    @property
    def options(self) -> Options:
        return self._options

    @property
    def directory(self) -> Path:
        return self.place.directory

    @property
    def env(self) -> dict[str, str]:
        """Our environment without another Slurm's variables, with what clients need to find this one."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        return {**kept, "PATH": search_path(), "SLURM_CONF": str(self.place.slurm_conf)}

    @property
    def daemon_environ(self) -> Mapping[str, str]:
        home = str(Path.home())
        return {"PATH": SYSTEM_PATH, "HOME": home, "LC_ALL": "C.UTF-8", "SLURM_CONF": str(self.place.slurm_conf)}

    @property
    def nodes(self) -> Nodes:
        return Nodes(self.place, self.options, self.daemon_environ)

    @property
    def daemons(self) -> Daemons:
        return Daemons(self.place, self.options, self.daemon_environ)

    @property
    def accounting(self) -> Accounting:
        return Accounting(self.place, self.options, self.daemon_environ)

    def command(self, argv: Sequence[str], node: str | None = None) -> list[str]:
        """What to execute to run a command with this testbed, or inside a node. Raises TestbedError: node off."""
        if node is None or self.options.rootless:
            return list(argv)
        prefix = self.nodes.enter_argv(node, cwd=str(Path.cwd()))
        if prefix is None:
            raise TestbedError(
                f"{node} is off", fix=f"`slurm-elastic testbed fault revive-node{self.place.flags} {node}`"
            )
        return [*prefix, *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        timeout_s: float = 60,
        text: str | None = None,
        check: bool = False,
    ) -> commands.Done:
        """Run a command with the testbed's environment, inside a node if one is named.

        Raises TestbedError when it takes too long, and with `check` when it fails.
        """
        if node is not None:
            self.options.node_index(node)
        done = commands.run(self.command(argv, node), environ=self.env, timeout_s=timeout_s, text=text)
        if check and done.returncode:
            raise TestbedError(f"`{' '.join(argv)}` exited {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done

    def tell(self, *argv: str) -> str:
        """Output of a command that must succeed."""
        return self.run(argv, check=True).stdout

    @staticmethod
    def wait_until(predicate: Callable[[], bool], timeout_s: float, what: str = "condition") -> None:
        """Return once `predicate` holds; it is asked ten times a second. Raises TestbedError after `timeout_s`."""
        processes.wait_until(predicate, timeout_s, what, poll_s=0.1)

    def submit(self, *arguments: str) -> int:
        """`sbatch` with these arguments; the job's number. Output goes to DIR/output unless they name a file."""
        output = f"--output={self.directory}/output/slurm-%j.out"
        return int(self.tell("sbatch", "--parsable", output, *arguments).strip().partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """Fields of `scontrol show job`; empty when Slurm does not know it or does not answer."""
        done = self.run(["scontrol", "-o", "show", "job", str(job)])
        return dict(pair.split("=", 1) for pair in done.stdout.split() if "=" in pair) if not done.returncode else {}

    def job_state(self, job: int) -> str:
        return self.job(job).get("JobState", "")

    def wait_job(self, job: int, states: str | Iterable[str], timeout_s: float = 60) -> None:
        """Return once a job is in one of these states."""
        wanted = {states} if isinstance(states, str) else set(states)
        what = f"job {job} {' or '.join(sorted(wanted))}"
        self.wait_until(lambda: self.job_state(job) in wanted, timeout_s, what)

    def queue(self) -> tuple[str, ...]:
        """Jobs that are not over, one line each. Raises TestbedError when the controller does not answer."""
        return tuple(self.tell("squeue", "-h", "-a", "-o", "%i %T %j %R").splitlines())

    def node_states(self) -> dict[str, str]:
        """State of each node as sinfo names it ("idle", "down*", ...); empty when Slurm does not answer."""
        done = self.run(["sinfo", "-h", "-N", "-o", "%N %T"])
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)

    def wait_nodes(self, states: str | Iterable[str], *, nodes: Sequence[str] = (), timeout_s: float = 90) -> None:
        """Return once these nodes (all by default) are in one of these states."""
        wanted = {states} if isinstance(states, str) else set(states)
        names = nodes or self.options.node_names

        def reached() -> bool:
            now = self.node_states()
            return all(now.get(name, "") in wanted for name in names)

        self.wait_until(reached, timeout_s, f"nodes {', '.join(names)} {' or '.join(sorted(wanted))}")

    def node_pids(self, node: str) -> tuple[int, ...]:
        """Pids on the host of all processes inside a node."""
        self.options.node_index(node)
        return self.nodes.pids(node)

    def leftovers(self) -> tuple[str, ...]:
        """Processes inside nodes that are neither pid 1 nor slurmd: what jobs run, or have left running."""
        if self.options.rootless:
            return ()
        inside = {pid: node for node in self.options.node_names for pid in self.node_pids(node)}
        own = {inner.pid for node in self.options.node_names if (inner := self.nodes.init(node)) is not None}
        return tuple(
            f"{inside[one.process.pid]}: {' '.join(one.arguments) or one.name}"
            for one in processes.running()
            if one.process.pid in inside and one.process.pid not in own and one.name != "slurmd"
        )
