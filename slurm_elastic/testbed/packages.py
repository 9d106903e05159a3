"""Which programs the testbed needs, which package has them, and how to get them without starting services."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.errors import MissingDependency, TestbedError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PACKAGE_OF = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "munge": "munge",
}
PACKAGE_OF_NODES = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
PACKAGE_OF_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}

SERVICES = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb")
POLICY = Path("/usr/sbin/policy-rc.d")


def search_path() -> str:
    """PATH with the system directories, where daemons are (an ordinary user's PATH often lacks them)."""
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def missing_packages(*, rootless: bool = False, accounting: bool = True) -> tuple[str, ...]:
    """Packages whose programs are not on this machine, in alphabetical order."""
    wanted = dict(PACKAGE_OF)
    if not rootless:
        wanted |= PACKAGE_OF_NODES
    if accounting:
        wanted |= PACKAGE_OF_ACCOUNTING
    path = search_path()
    return tuple(sorted({package for program, package in wanted.items() if shutil.which(program, path=path) is None}))


def install_command(packages: Sequence[str]) -> tuple[str, ...]:
    """The exact command that installs them."""
    return ("apt-get", "install", "-y", "--no-install-recommends", *packages)


def require(*, rootless: bool = False, accounting: bool = True) -> None:
    """Raises MissingDependency, with the command to run, when a program is missing."""
    packages = missing_packages(rootless=rootless, accounting=accounting)
    if packages:
        raise MissingDependency(
            f"the testbed needs packages that are not installed: {', '.join(packages)}",
            fix=f"`slurm-elastic testbed packages --install` as root (starts no service), "
            f"or `{' '.join(install_command(packages))}`",
        )


def install(packages: Sequence[str]) -> None:
    """Install packages; services that come with them are neither started nor enabled.

    Services that were on the machine before are left as they are. Needs root and apt. Raises TestbedError.
    """
    if not packages:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise TestbedError(
            "packages can be installed only by root and apt", fix=f"install them yourself: {', '.join(packages)}"
        )
    before = {name for name in SERVICES if _has_service(name)}
    placed = _forbid_starts()
    try:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for argv in (("apt-get", "update"), install_command(packages)):
            if subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, check=False).returncode:
                raise TestbedError(f"`{' '.join(argv)}` failed", fix="see its output above")
    finally:
        if placed:
            POLICY.unlink(missing_ok=True)
        for name in SERVICES:
            if name not in before and _has_service(name):
                _disable(name)


def _forbid_starts() -> bool:
    """Place Debian's switch against service starts; False when the machine has one of its own."""
    try:
        with POLICY.open("x") as file:
            file.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        return False
    POLICY.chmod(0o755)
    return True


def _has_service(name: str) -> bool:
    places = ("/etc/init.d/{}", "/lib/systemd/system/{}.service", "/usr/lib/systemd/system/{}.service")
    return any(Path(place.format(name)).exists() for place in places)


def _disable(name: str) -> None:
    for argv in (("deb-systemd-helper", "disable", f"{name}.service"), ("update-rc.d", name, "disable")):
        if shutil.which(argv[0]) is not None:
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
