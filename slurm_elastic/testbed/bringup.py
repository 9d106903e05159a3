"""Start and end of a testbed: the order in which its parts come up, and how all of them go away."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import commands, configuration, mounts
from slurm_elastic.testbed.access import Access
from slurm_elastic.testbed.nodes import init_script
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place, exclusive, free_slot, user_name, write_marker

DIRECTORIES = ("conf", "log", "run", "spool", "state", "munge", "dev", "vartmp", "output", "disk")
NULL_DEVICE = os.makedev(1, 3)
FREEZER = Path("/sys/fs/cgroup/freezer")


def start(name: str, directory: Path, options: Options) -> Place:
    """Bring a testbed up in a directory that exists and is empty. On an error the caller clears it."""
    with _claimed(name, directory, options) as place:
        access = Access(place, options)
        _write_files(access)
        access.daemons.start_munge()
        if options.rootless:
            access.daemons.start_controller()  # (its port must be taken before the slot is let go)
    if options.accounting:
        access.accounting.start_database()
        access.accounting.start_daemon()
        access.accounting.set_up()
    # a slurmd that starts before the controller may try again only seconds later
    access.daemons.start_controller()
    for node in options.node_names:
        if options.rootless:
            access.daemons.start_local_node(node)
        else:
            access.nodes.boot(node)
    access.wait_nodes("idle")
    return place


@contextlib.contextmanager
def _claimed(name: str, directory: Path, options: Options) -> Iterator[Place]:
    """A place with a slot of its own, with marker, mounts and network made."""
    with exclusive("slot", 120):
        place = Place(name, directory, free_slot(name, options), options.rootless)
        access = Access(place, options)
        if not options.rootless:
            mounts.mount_memory(directory, mounts.SIZE, access.daemon_environ)
        write_marker(place, options)
        for part in DIRECTORIES:
            (directory / part).mkdir(mode=0o755)
        (directory / "output").chmod(0o1777)
        (directory / "state").chmod(0o700)
        if not options.rootless:
            disk = f"size={options.disk_mb}m,mode=1777"
            mounts.mount_memory(place.disk, disk, access.daemon_environ)
            access.nodes.make_network()
        yield place


def _write_files(access: Access) -> None:
    place, options = access.place, access.options
    conf = place.directory / "conf"
    host = socket.gethostname().partition(".")[0]
    write_slurm_conf(place, options)
    (conf / "hosts").write_text(configuration.hosts(place, options, host=host))
    (conf / "resolv.conf").write_text(configuration.RESOLV_CONF)
    (conf / "node-init").write_text(init_script(place, options))
    if options.gpus:
        (conf / "gres.conf").write_text(configuration.gres_conf(options, _devices(place, options)))
    if text := configuration.cgroup_conf(options, slurm_version(access)):
        (conf / "cgroup.conf").write_text(text)
    if options.accounting:
        secret = conf / "slurmdbd.conf"
        secret.touch(mode=0o600)
        secret.write_text(configuration.slurmdbd_conf(place, host=host))
    if options.process_tracking == "cgroup":
        _cgroup(place).mkdir(exist_ok=True)
    (place.directory / "env.sh").write_text(configuration.env_sh(place))


def write_slurm_conf(place: Place, options: Options) -> None:
    """Write slurm.conf anew, as one replacement: daemons read it at any time."""
    host = socket.gethostname().partition(".")[0]
    draft = place.slurm_conf.with_suffix(".new")
    draft.write_text(configuration.slurm_conf(place, options, host=host, user=user_name()))
    draft.replace(place.slurm_conf)


def _devices(place: Place, options: Options) -> list[str]:
    """Character devices that stand for GPUs: our own ones as root, else some that are on every machine."""
    if options.rootless:
        return [device for device in configuration.DEVICES if stat.S_ISCHR(Path(device).stat().st_mode)]
    made = []
    for index in range(options.gpus):
        device = place.directory / "dev" / f"gpu{index}"
        os.mknod(device, stat.S_IFCHR | 0o666, NULL_DEVICE)
        device.chmod(0o666)
        made.append(str(device))
    return made


def slurm_version(access: Access) -> tuple[int, int]:
    """Year and month of the Slurm that is installed here."""
    said = commands.must(["slurmctld", "-V"], environ=access.daemon_environ)
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise TestbedError(f"`slurmctld -V` said {said.strip()!r}, which names no version")
    return int(found[1]), int(found[2])


def clear(access: Access) -> None:
    """End and remove everything of a testbed; it may be up, half up, or gone already."""
    options = access.options
    if options.rootless:
        access.daemons.end_local_steps()
    else:
        for node in options.node_names:
            access.nodes.end(node)
    access.daemons.stop_all()
    if options.rootless:
        access.daemons.end_local_steps()
    else:
        access.nodes.remove_network()
        if options.process_tracking == "cgroup":
            _remove_cgroup(_cgroup(access.place))
    remove_directory(access.directory)


def remove_directory(directory: Path) -> None:
    """Remove a testbed's directory and its mounts."""
    if os.geteuid() == 0:
        mounts.unmount_all(directory, {"PATH": os.defpath})
    if directory.exists():
        shutil.rmtree(directory)


def _cgroup(place: Place) -> Path:
    return FREEZER / place.bridge


def _remove_cgroup(top: Path) -> None:
    for path, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(FileNotFoundError):
            Path(path).rmdir()
