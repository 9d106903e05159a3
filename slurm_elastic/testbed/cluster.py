"""A real Slurm cluster on this machine: bring it up, use it, break it, take it down.

cluster = Cluster("mine", Options(nodes=6))
cluster.up()
try:
    job = cluster.submit("-q", "base", "--wrap", "sleep 100")
    cluster.wait_job(job, "RUNNING")
    cluster.kill_node("n1")
finally:
    cluster.down()
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_elastic.errors import TestbedError, UserMistake
from slurm_elastic.testbed import bringup, packages
from slurm_elastic.testbed.access import Access
from slurm_elastic.testbed.faults import Faults
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import (
    DEFAULT_NAME,
    Place,
    checked_directory,
    default_directory,
    exclusive,
    read_marker,
)
from slurm_elastic.testbed.processes import recorded

LOCK_S = 300


@dataclass(frozen=True, slots=True)
class Health:
    """What of a testbed runs now."""

    daemons: dict[str, bool]
    nodes: dict[str, dict[str, Any]]

    @property
    def whole(self) -> bool:
        return all(self.daemons.values()) and all(node["power"] == "on" for node in self.nodes.values())


class Cluster(Faults):
    """One testbed, by its name or directory. Making the value touches nothing."""

    def __init__(
        self, name: str = DEFAULT_NAME, options: Options | None = None, *, directory: Path | str | None = None
    ) -> None:
        self._directory = checked_directory(Path(directory) if directory else default_directory(name))
        known = read_marker(self._directory)
        place = known[0] if known else Place(name, self._directory, -1, False)
        super().__init__(place, options or (known[1] if known else Options()))

    @property
    def place(self) -> Place:
        """Raises UserMistake while the testbed is not up: it has no ports and addresses then."""
        if self._place.slot < 0:
            raise UserMistake(
                f"no testbed {self._place.name!r} is up in {self._directory}",
                fix=f"`slurm-elastic testbed up{self._place.flags}` first; `slurm-elastic testbed list` shows yours",
            )
        return self._place

    @property
    def is_up(self) -> bool:
        """There is a testbed in the directory (`health` says how well it is)."""
        return self._place.slot >= 0

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def directory(self) -> Path:
        return self._directory

    def up(self) -> bool:
        """Bring it up; returns when every node is idle. False: it was up already, with the same options.

        What a dead or half-started one left is cleared first, and so is this one when the start fails.
        Raises UserMistake (a running one has other options), MissingDependency, TestbedError.
        """
        options = self.options
        packages.require(rootless=options.rootless, accounting=options.accounting)
        if not options.rootless and os.geteuid() != 0:
            raise UserMistake(
                "a testbed with nodes of their own needs root",
                fix="become root, or add --rootless --no-accounting (no faults of nodes, no QOS)",
            )
        with self._locked():
            known = read_marker(self._directory)
            if known is not None and self._is_running(*known):
                if known[1] != options:
                    raise UserMistake(
                        f"testbed {self.name!r} is up with other options",
                        fix=f"`slurm-elastic testbed down{known[0].flags}` first",
                    )
                self._place = known[0]
                return False
            self._clear()
            self._directory.mkdir(mode=0o755)
            try:
                self._place = bringup.start(self._place.name, self._directory, options)
            except BaseException:
                self._clear()
                raise
        return True

    def down(self) -> None:
        """Take it down, whatever state it is in: no process, mount, link, namespace or file of it is left."""
        with self._locked():
            self._clear()

    def health(self) -> Health:
        """Which daemons and nodes run, and what Slurm says of the nodes."""
        names = ["munged", "slurmctld", *(["mariadbd", "slurmdbd"] if self.options.accounting else [])]
        alive = {name: self._alive(name) for name in names}
        states = self.node_states() if alive["slurmctld"] else {}
        nodes = {}
        for node in self.options.node_names:
            power = "on" if self._alive(node) else "off"
            cut = not self.options.rootless and power == "on" and self.nodes.is_cut(node)
            nodes[node] = {"state": states.get(node), "power": power, "network": "cut" if cut else "up"}
        return Health(alive, nodes)

    def restore(self, *, timeout_s: float = 120) -> None:
        """Undo every fault and end every job; returns with an empty queue and all nodes idle."""
        end = time.monotonic() + timeout_s
        self.hurry_controller()
        self.start_controller()
        if not self.options.rootless:
            self.free_disk()
            self._wake_nodes()
        self._empty_queue()
        try:
            self.wait_until(self._is_quiet, min(8.0, timeout_s), "an empty queue and idle nodes")
            return
        except TestbedError:
            self._bring_back()
        self.wait_until(self._is_quiet, max(1.0, end - time.monotonic()), "an empty queue and idle nodes")

    def _wake_nodes(self) -> None:
        for node in self.options.node_names:
            if not self._alive(node):
                self.nodes.boot(node, fresh=True)
            else:
                self.nodes.heal(node)
                self.nodes.signal_all(node, signal.SIGCONT)

    def _empty_queue(self) -> None:
        jobs = [line.split()[0] for line in self.queue()]
        if jobs:
            # (a suspended job takes its end only once it goes on)
            self.run(["scontrol", "resume", ",".join(jobs)])
            self.run(["scancel", "--quiet", *jobs])

    def _bring_back(self) -> None:
        """Nodes that are still busy, down or drained: boot them anew, which also ends what holds a job."""
        for node, state in self.node_states().items():
            if state == "idle":
                continue
            if not self.options.rootless:
                self.nodes.end(node)
                self.nodes.boot(node, fresh=True)
            # (refused where there is nothing to resume)
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        self._empty_queue()

    def _is_quiet(self) -> bool:
        states = self.node_states()
        if any(states.get(node) != "idle" for node in self.options.node_names):
            for node, state in states.items():
                if state.startswith(("drain", "fail")):
                    self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
            return False
        queue = self.run(["squeue", "-h", "-a"])
        return queue.returncode == 0 and not queue.stdout.strip()

    def _alive(self, name: str) -> bool:
        known = recorded(self.place.pidfile(name))
        return known is not None and known.alive

    def _is_running(self, place: Place, options: Options) -> bool:
        here = Cluster(place.name, options, directory=place.directory)
        return here.health().whole

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return exclusive(str(self._directory), LOCK_S)

    def _clear(self) -> None:
        known = read_marker(self._directory)
        if known is not None:
            bringup.clear(Access(*known))
        elif self._directory.exists():
            bringup.remove_directory(self._directory)
        self._place = replace(self._place, slot=-1)
