"""Nodes with a network, process table, host name and mounts of their own, joined by a bridge.

The recorded process of a node is the one that made its namespaces; its only child is pid 1 inside. Killing
the recorded process kills the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.testbed import commands
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place
from slurm_elastic.testbed.processes import Process, recorded, start, wait_until

# bash as pid 1 collects orphans; slurmd as pid 1 would leave zombies. It goes on when its network is there.
INIT = """\
#!/bin/bash
# pid 1 of a node: $1 its name, $2 an option for slurmd
set -u
read -r _ || exit 1
hostname "$1"
mount --make-rprivate /
mkdir -p "{at}/vartmp/$1" "{at}/spool/$1"
chmod 1777 "{at}/vartmp/$1"
mount --bind "{at}/vartmp/$1" /var/tmp
mount -t tmpfs tmpfs /dev/shm
mount --bind {at}/conf/hosts /etc/hosts
mount --bind {at}/conf/resolv.conf /etc/resolv.conf
{cgroup}
: > "{at}/spool/$1.up"
slurmd -D -f {conf} ${{2:-}} </dev/null &
exec 3<> <(:)
while :; do wait; read -r -t 1 _ <&3; done  # (a sleep without a process)
"""

# A private subtree: two testbeds with the same node names and job numbers must not kill each other's steps.
PRIVATE_CGROUP = "mount --bind /sys/fs/cgroup/freezer/{name} /sys/fs/cgroup/freezer"


def init_script(place: Place, options: Options) -> str:
    cgroup = PRIVATE_CGROUP.format(name=place.bridge) if options.process_tracking == "cgroup" else ""
    return INIT.format(at=place.directory, conf=place.slurm_conf, cgroup=cgroup)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of one testbed. Needs root."""

    place: Place
    options: Options
    environ: Mapping[str, str]

    def make_network(self) -> None:
        """The bridge all nodes hang on. Fails when somebody has it already: that claims the slot."""
        bridge = self.place.bridge
        self._ip(
            f"link add {bridge} type bridge",
            f"addr add {self.place.controller_address}/24 dev {bridge}",
            f"link set {bridge} up",
        )
        # Slurm's small messages wait 40 ms for each other's acknowledgement otherwise: 4 s of a start.
        # Nothing depends on it, so a kernel that refuses it does not matter.
        address = self.place.controller_address
        route = f"local {address} dev {bridge} table local proto kernel scope host src {address} quickack 1"
        commands.run(["ip", "route", "change", *route.split()], environ=self.environ)

    def boot(self, node: str, *, fresh: bool = False) -> None:
        """Start a node that is not running; `fresh`: slurmd reports a reboot."""
        index = self.options.node_index(node)
        self._unplug(index)
        self._up(node).unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        try:
            argv = ["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
            argv += ["bash", f"{self.place.directory}/conf/node-init", node, *(["-b"] if fresh else [])]
            outer = start(
                argv,
                log=self.place.console(node),
                pidfile=self.place.pidfile(node),
                environ=self.environ,
                stdin=read_end,
            )
            own = Path("/proc/self/ns/net").readlink()
            wait_until(lambda: _network_of(outer) not in (None, own) or not outer.alive, 30, f"namespaces of {node}")
            self._plug(index, outer)
            os.write(write_end, b"go\n")
        finally:
            os.close(read_end)
            os.close(write_end)

    def _plug(self, index: int, outer: Process) -> None:
        link = self.place.link(index)
        self._ip(
            f"link add {link} type veth peer name eth0 netns {outer.pid}",
            f"link set {link} master {self.place.bridge} up",
        )
        inside = (
            "link set lo up",
            f"addr add {self.place.network}.{index}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.place.controller_address}",
        )
        argv = ["nsenter", "--target", str(outer.pid), "--net", "ip", "-batch", "-"]
        commands.must(argv, environ=self.environ, text="\n".join(inside) + "\n")

    def _unplug(self, index: int) -> None:
        # (the end of a dead node goes away by itself, but only later)
        commands.run(["ip", "link", "del", self.place.link(index)], environ=self.environ)

    def cut(self, node: str) -> None:
        """Take the cable out: nothing leaves the node, its processes go on."""
        self._ip(f"link set {self.place.link(self.options.node_index(node))} down")

    def heal(self, node: str) -> None:
        self._ip(f"link set {self.place.link(self.options.node_index(node))} up")

    def kill(self, node: str) -> None:
        """Power loss: the cable first (no FIN or RST leaves the node), then every process of it at once."""
        outer = self.outer(node)
        if outer is None or not outer.alive:
            return
        self.cut(node)
        self.end(node)

    def end(self, node: str) -> None:
        """Kill a node's processes, whatever state they are in, and wait for the last of them."""
        outer = self.outer(node)
        inner = self.init(node)
        if outer is not None:
            outer.stop(patience_s=0)
        if inner is not None:
            wait_until(lambda: not inner.alive, 30, f"end of {node}")

    def is_up(self, node: str) -> bool:
        """Whether a booted node has its name and its mounts, and starts slurmd."""
        return self._up(node).exists()

    def _up(self, node: str) -> Path:
        return Path(self.place.directory) / "spool" / f"{node}.up"

    def outer(self, node: str) -> Process | None:
        return recorded(self.place.pidfile(node))

    def init(self, node: str) -> Process | None:
        """Pid 1 of a running node, by its pid on the host."""
        outer = self.outer(node)
        if outer is None or not outer.alive:
            return None
        with contextlib.suppress(OSError, ValueError):
            pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
            info = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return Process(pid, int(info[19]))
        return None

    def pids(self, node: str) -> tuple[int, ...]:
        """All processes of a node, by their pids on the host."""
        inner = self.init(node)
        if inner is None:
            return ()
        space = Path(f"/proc/{inner.pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                    found.append(int(entry.name))
        return tuple(sorted(found))

    def enter_argv(self, node: str, *, cwd: str) -> list[str] | None:
        """What to put before a command to run it inside a node; None while the node is off."""
        inner = self.init(node)
        if inner is None:
            return None
        flags = ["--net", "--uts", "--pid", "--mount", "--ipc"]
        return ["nsenter", "--target", str(inner.pid), *flags, "env", "-C", cwd]

    def is_cut(self, node: str) -> bool:
        argv = ["ip", "-j", "link", "show", self.place.link(self.options.node_index(node))]
        done = commands.run(argv, environ=self.environ)
        if done.returncode:
            return False  # no cable at all: the node is off, not cut
        return "UP" not in json.loads(done.stdout)[0]["flags"]

    def remove_network(self) -> None:
        """Take the bridge and all cables away; nothing happens to what is not there."""
        for index in range(1, self.options.nodes + 1):
            self._unplug(index)
        commands.run(["ip", "link", "del", self.place.bridge], environ=self.environ)

    def signal_all(self, node: str, number: signal.Signals) -> None:
        """Send a signal to every process of a node but its pid 1."""
        inner = self.init(node)
        for pid in self.pids(node):
            if inner is not None and pid != inner.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _ip(self, *lines: str) -> None:
        commands.must(["ip", "-batch", "-"], environ=self.environ, text="\n".join(lines) + "\n")


def _network_of(process: Process) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/net").readlink()
    except OSError:
        return None
