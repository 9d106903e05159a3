"""MUNGE and the controller of a testbed, and slurmd without namespaces for the rootless form."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import commands
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place, port_is_free
from slurm_elastic.testbed.processes import Process, Running, recorded, running, start, wait_until

START_S = 90
"""Longest start of a daemon: a bound for a machine with other work, hardly ever reached."""

STOP_S = 8


def last_words(place: Place, name: str) -> str:
    """The end of what a daemon printed."""
    lines = place.console(name).read_text(errors="replace").splitlines()
    return " | ".join(lines[-5:]) or "nothing"


def wait_started(place: Place, name: str, process: Process, ready: Callable[[], bool]) -> None:
    """Return when a daemon is ready. Raises TestbedError, with its last words, when it ended or takes too long."""
    wait_until(lambda: not process.alive or ready(), START_S, f"start of {name} (it said: {last_words(place, name)})")
    if not process.alive:
        raise TestbedError(f"{name} ended at its start: {last_words(place, name)}")


@dataclass(frozen=True, slots=True)
class Daemons:
    """MUNGE and slurmctld of one testbed."""

    place: Place
    options: Options
    environ: Mapping[str, str]

    def start_munge(self) -> None:
        """Start MUNGE with a key and a socket of its own."""
        at = self.place.directory / "munge"
        key = at / "key"
        key.touch(mode=0o600, exist_ok=False)
        key.write_bytes(secrets.token_bytes(1024))
        argv = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.place.munge_socket}"]
        argv += [f"--pid-file={at}/pid", f"--seed-file={at}/seed", f"--log-file={self.place.log('munged')}"]
        daemon = start(
            argv, log=self.place.console("munged"), pidfile=self.place.pidfile("munged"), environ=self.environ
        )
        ask = ["munge", "--no-input", "--socket", str(self.place.munge_socket)]

        def answers() -> bool:
            return self.place.munge_socket.exists() and commands.run(ask, environ=self.environ).returncode == 0

        wait_started(self.place, "munged", daemon, answers)

    def controller(self) -> Process | None:
        return recorded(self.place.pidfile("slurmctld"))

    def start_controller(self) -> None:
        """Start slurmctld, with the state it left; nothing happens while it runs. Returns when it answers."""
        known = self.controller()
        if known is not None and known.alive:
            return
        daemon = start(
            ["slurmctld", "-D", "-f", str(self.place.slurm_conf)],
            log=self.place.console("slurmctld"),
            pidfile=self.place.pidfile("slurmctld"),
            environ=self.environ,
        )

        def answers() -> bool:
            # (a ping that comes too early waits for a second)
            return (
                not port_is_free(self.place.port)
                and commands.run(["scontrol", "ping"], environ=self.environ).returncode == 0
            )

        wait_started(self.place, "slurmctld", daemon, answers)

    def stop_controller(self, *, kill: bool = False) -> None:
        """End slurmctld: TERM, so that it saves its state, or KILL."""
        known = self.controller()
        if known is not None:
            known.signal(signal.SIGCONT)  # (a slowed one may be asleep)
            known.stop(patience_s=0 if kill else 30)

    def start_local_node(self, node: str) -> None:
        """slurmd of the rootless form: a process of this machine like any other."""
        argv = ["slurmd", "-D", "-N", node, "-f", str(self.place.slurm_conf)]
        (self.place.directory / "spool" / node).mkdir(exist_ok=True)
        start(argv, log=self.place.console(node), pidfile=self.place.pidfile(node), environ=self.environ)

    def end_local_steps(self) -> None:
        """Kill what jobs of the rootless form left: step daemons of this testbed and all they started."""
        everything = list(running())
        conf = str(self.place.slurm_conf)
        steps = [
            one for one in everything if one.name.startswith("slurmstepd") and one.environ.get("SLURM_CONF") == conf
        ]
        for one in (*steps, *descendants(everything, steps)):
            one.process.signal(signal.SIGKILL)

    def stop_all(self) -> None:
        """End every recorded process, in the order in which they need each other."""
        nodes = self.options.node_names
        for name in ("slow", *nodes, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            path = self.place.pidfile(name)
            known = recorded(path)
            if known is not None:
                known.signal(signal.SIGCONT)
                known.stop(patience_s=0 if name in nodes else STOP_S)
            path.unlink(missing_ok=True)


def descendants(everything: list[Running], roots: list[Running]) -> list[Running]:
    """All processes below some others, by their parents."""
    known = {one.process.pid for one in roots}
    found: list[Running] = []
    while fresh := [one for one in everything if one.parent in known and one.process.pid not in known]:
        known |= {one.process.pid for one in fresh}
        found += fresh
    return found
