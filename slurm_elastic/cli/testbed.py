"""`slurm-elastic testbed`: a real Slurm cluster on this machine, to try things on and to break."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from slurm_elastic.errors import MissingDependency
from slurm_elastic.testbed import packages
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import DEFAULT_NAME, DIRECTORY_VARIABLE, NAME_VARIABLE, known_places

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULTS = Options()


def _which(command: Command) -> Command:
    """Options that say which testbed is meant."""
    command = click.option(
        "--dir", "directory", type=click.Path(path_type=Path), callback=_directory, help="Its directory."
    )(command)
    return click.option(
        "--name",
        default=DEFAULT_NAME,
        envvar=NAME_VARIABLE,
        is_eager=True,  # known when the directory is asked for
        show_default=True,
        help="Name of the testbed; after `. env.sh` of one, that is the default.",
    )(command)


def _directory(context: click.Context, _: click.Parameter, given: Path | None) -> Path | None:
    """env.sh's, unless a flag says otherwise."""
    named = context.get_parameter_source("name") is ParameterSource.COMMANDLINE
    of_shell = os.environ.get(DIRECTORY_VARIABLE)
    return Path(of_shell) if given is None and not named and of_shell else given


def _existing(name: str, directory: Path | None) -> Cluster:
    cluster = Cluster(name, directory=directory)
    assert cluster.place  # raises UserMistake when none is up
    return cluster


@click.group()
def testbed() -> None:
    """A real Slurm cluster on this machine, every node with a network and a process table of its own."""


@testbed.command()
@_which
@click.option("--nodes", default=DEFAULTS.nodes, show_default=True, help="Number of nodes.")
@click.option("--cpus", default=DEFAULTS.cpus, show_default=True, help="CPUs of a node, as Slurm counts them.")
@click.option("--gpus", default=DEFAULTS.gpus, show_default=True, help="Pretended GPUs of a node.")
@click.option("--memory", "memory_mb", default=DEFAULTS.memory_mb, show_default=True, help="Memory of a node in MB.")
@click.option("--grace", "grace_s", default=DEFAULTS.grace_s, show_default=True, help="GraceTime of elastic jobs, s.")
@click.option("--kill-wait", "kill_wait_s", default=DEFAULTS.kill_wait_s, show_default=True, help="KillWait in s.")
@click.option(
    "--slurmd-timeout", "slurmd_timeout_s", default=DEFAULTS.slurmd_timeout_s, show_default=True, help="In seconds."
)
@click.option(
    "--preempt-mode",
    type=click.Choice(["REQUEUE", "CANCEL"], case_sensitive=False),
    default=DEFAULTS.preempt_mode,
    show_default=True,
    help="What becomes of a preempted elastic job.",
)
@click.option(
    "--notice",
    type=click.Choice(["user-signal", "sigterm", "none"]),
    default=DEFAULTS.notice,
    show_default=True,
    help="How it hears of it: its own --signal, TERM to its steps, or none: no grace time.",
)
@click.option(
    "--proctrack",
    "process_tracking",
    type=click.Choice(["linuxproc", "pgid", "cgroup"]),
    default=DEFAULTS.process_tracking,
    show_default=True,
    help="How Slurm finds a step's processes (cgroup needs the v1 freezer).",
)
@click.option("--disk", "disk_mb", default=DEFAULTS.disk_mb, show_default=True, help="MB of the disk to be filled.")
@click.option("--users", default="", help="More users to add to the accounting, with commas.")
@click.option("--no-accounting", is_flag=True, help="No slurmdbd: partitions elastic, base, urgent instead of QOS.")
@click.option("--rootless", is_flag=True, help="As an ordinary user: no accounting, no faults of nodes.")
@click.option("--json", "as_json", is_flag=True, help="Say what is up as one JSON object.")
def up(
    name: str, directory: Path | None, users: str, no_accounting: bool, rootless: bool, as_json: bool, **values: Any
) -> None:
    """Bring a cluster up. Up already with the same options: nothing happens."""
    values["preempt_mode"] = values["preempt_mode"].upper()
    options = Options(
        **values,
        users=tuple(user for user in users.split(",") if user),
        accounting=not (no_accounting or rootless),
        rootless=rootless,
    )
    cluster = Cluster(name, options, directory=directory)
    began = time.monotonic()
    new = cluster.up()
    if as_json:
        click.echo(json.dumps(_described(cluster), indent=1))
        return
    kind = "QOS" if options.accounting else "partitions"
    seconds = f"in {time.monotonic() - began:.1f} s" if new else "already"
    click.echo(f"testbed {cluster.name} is up {seconds}: {options.nodes} nodes, {kind} elastic, base, urgent")
    click.echo(f"use it:  . {cluster.directory}/env.sh")


@testbed.command()
@_which
def down(name: str, directory: Path | None) -> None:
    """Take a cluster down. Nothing of it is left; nothing happens where none is."""
    cluster = Cluster(name, directory=directory)
    known = cluster.is_up
    cluster.down()
    click.echo(f"testbed {cluster.name} is down" if known else f"no testbed {cluster.name!r} was up")


@testbed.command()
@_which
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_context
def status(context: click.Context, name: str, directory: Path | None, as_json: bool) -> None:
    """What of a cluster runs. Exit code 1 when something does not."""
    cluster = _existing(name, directory)
    health = cluster.health()
    if as_json:
        click.echo(json.dumps(_described(cluster), indent=1))
    else:
        place = cluster.place
        network = "loopback" if place.rootless else f"network {place.network}.0/24"
        click.echo(f"testbed {cluster.name} in {place.directory}, {network}, port {place.port}")
        click.echo("  ".join(f"{daemon} {'runs' if alive else 'DOWN'}" for daemon, alive in health.daemons.items()))
        for node, facts in health.nodes.items():
            click.echo(f"{node:6}{facts['state'] or '?':12}power {facts['power']:5}network {facts['network']}")
    context.exit(0 if health.whole else 1)


@testbed.command("list")
def show_all() -> None:
    """Your testbeds (those without a --dir)."""
    places = known_places()
    for place in places:
        click.echo(f"{place.name:12} {place.directory}")
    if not places:
        click.echo("no testbed; `slurm-elastic testbed up` brings one up")


@testbed.command("exec", context_settings={"ignore_unknown_options": True})
@_which
@click.option("--node", help="Run it inside this node.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, directory: Path | None, node: str | None, command: tuple[str, ...]) -> None:
    """Run a command with the cluster's environment.

    \b
    Examples:
      slurm-elastic testbed exec -- squeue
      slurm-elastic testbed exec --node n1 -- ps ax
    """
    cluster = _existing(name, directory)
    if node is not None:
        cluster.options.node_index(node)
    argv = cluster.command(command, node)
    try:
        os.execvpe(argv[0], argv, cluster.env)
    except OSError as error:
        raise MissingDependency(f"cannot run {argv[0]}: {error.strerror}") from error


@testbed.command("packages")
@click.option("--install", is_flag=True, help="Install what is missing (root, apt); starts and enables no service.")
@click.option("--rootless", is_flag=True, help="Only what --rootless needs.")
@click.pass_context
def show_packages(context: click.Context, install: bool, rootless: bool) -> None:
    """Say which packages are missing. Exit code 1 when some are."""
    missing = packages.missing_packages(rootless=rootless, accounting=not rootless)
    if not missing:
        click.echo("all programs of the testbed are here")
    elif install:
        packages.install(missing)
    else:
        click.echo(" ".join(packages.install_command(missing)))
        context.exit(1)


@testbed.group()
def fault() -> None:
    """Break something in a cluster, or mend it again."""


def _of_node(word: str, act: Callable[[Cluster, str], object], help_: str) -> None:
    @fault.command(word, help=help_)
    @_which
    @click.argument("node")
    def command(name: str, directory: Path | None, node: str) -> None:
        _report(word, node, act(_existing(name, directory), node))


def _of_job(word: str, act: Callable[[Cluster, int], object], help_: str) -> None:
    @fault.command(word, help=help_)
    @_which
    @click.argument("job", type=int)
    def command(name: str, directory: Path | None, job: int) -> None:
        _report(word, str(job), act(_existing(name, directory), job))


def _of_cluster(word: str, act: Callable[[Cluster], object], help_: str) -> None:
    @fault.command(word, help=help_)
    @_which
    def command(name: str, directory: Path | None) -> None:
        _report(word, "", act(_existing(name, directory)))


def _report(word: str, target: str, found: object) -> None:
    number = f" ({found})" if isinstance(found, int) and not isinstance(found, bool) else ""
    click.echo(f"{word} {target}".rstrip() + f": done{number}")


_of_node("kill-node", Cluster.kill_node, "Power loss: the cable first, then every process.")
_of_node("revive-node", Cluster.revive_node, "Boot a node again; returns when Slurm can use it.")
_of_node("cut-network", Cluster.cut_network, "Nothing reaches the node; its processes go on.")
_of_node("heal-network", Cluster.heal_network, "Takes cut-network away.")
_of_node("drain-node", Cluster.drain_node, "No new jobs on a node.")
_of_node("fail-node", Cluster.fail_node, "Mark a node as about to fail.")
_of_node("undrain-node", Cluster.undrain_node, "Takes drain-node and fail-node away.")
_of_node("thaw-worker", Cluster.thaw_worker, "SIGCONT for the workers of a node.")
_of_node("kill-agent", Cluster.kill_agent, "SIGKILL for the agent on a node.")
_of_job("suspend-job", Cluster.suspend_job, "As an operator suspends a job.")
_of_job("resume-job", Cluster.resume_job, "Takes suspend-job away.")
_of_cluster("start-controller", Cluster.start_controller, "Start the controller with the state it left.")
_of_cluster("hurry-controller", Cluster.hurry_controller, "Takes slow-controller away.")
_of_cluster("free-disk", Cluster.free_disk, "Takes fill-disk away.")


@fault.command("stop-controller")
@_which
@click.option("--kill", is_flag=True, help="SIGKILL instead of SIGTERM.")
def stop_controller(name: str, directory: Path | None, kill: bool) -> None:
    """Stop the controller; jobs go on."""
    _existing(name, directory).stop_controller(kill=kill)
    _report("stop-controller", "", None)


@fault.command("slow-controller")
@_which
@click.option("--pause", "pause_s", default=2.0, show_default=True, help="Seconds an answer takes at most.")
def slow_controller(name: str, directory: Path | None, pause_s: float) -> None:
    """Let the controller sleep most of the time."""
    _existing(name, directory).slow_controller(pause_s)
    _report("slow-controller", "", None)


@fault.command("kill-supervisor")
@_which
@click.option("--run-dir", help="That of this run, where several run.")
def kill_supervisor(name: str, directory: Path | None, run_dir: str | None) -> None:
    """SIGKILL for a run's supervisor."""
    _report("kill-supervisor", "", _existing(name, directory).kill_supervisor(run_dir))


@fault.command("fill-disk")
@_which
@click.option("--leave", "leave_bytes", default=0, show_default=True, help="Bytes to leave free.")
def fill_disk(name: str, directory: Path | None, leave_bytes: int) -> None:
    """Fill DIR/disk, a small disk of the testbed's own."""
    _report("fill-disk", "", _existing(name, directory).fill_disk(leave_bytes=leave_bytes))


def _of_worker(word: str, act: Callable[..., int], help_: str) -> None:
    @fault.command(word, help=help_)
    @_which
    @click.argument("node")
    @click.option("--job", type=int, help="Only of this job.")
    @click.option("--local-rank", type=int, help="Only this task of the node.")
    def command(name: str, directory: Path | None, node: str, job: int | None, local_rank: int | None) -> None:
        pid = act(_existing(name, directory), node, job=job, local_rank=local_rank)
        _report(word, node, pid)


_of_worker("kill-worker", Cluster.kill_worker, "SIGKILL for one worker of a node.")
_of_worker("freeze-worker", Cluster.freeze_worker, "SIGSTOP for one worker of a node and all below it.")


def _described(cluster: Cluster) -> dict[str, Any]:
    """What `--json` says: stable keys."""
    place, health = cluster.place, cluster.health()
    return {
        "name": place.name,
        "directory": str(place.directory),
        "slurm_conf": str(place.slurm_conf),
        "disk": str(place.disk),
        "network": None if place.rootless else f"{place.network}.0/24",
        "port": place.port,
        "options": asdict(cluster.options),
        "daemons": health.daemons,
        "nodes": health.nodes,
        "whole": health.whole,
    }
