"""Where a testbed lives: its directory, and a slot that gives it a network, a prefix and ports of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pwd
import re
import shlex
import socket
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_elastic.errors import TestbedError, UserMistake
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.packages import search_path

DEFAULT_NAME = "default"
NAME_VARIABLE, DIRECTORY_VARIABLE = "SLURM_ELASTIC_TESTBED", "SLURM_ELASTIC_TESTBED_DIR"  # env.sh sets them
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
FORMAT = "slurm-elastic testbed 1"
_PREFIX = "slurm-elastic-testbed-"
LONGEST_DIRECTORY = 80  # a socket's path may have 107 bytes
SLOTS = 100
ROOTLESS_SLOTS = 30
FIRST_PORT = 26_800
FIRST_ROOTLESS_PORT = 28_000
PORTS_OF_ROOTLESS = 4 + 100


@dataclass(frozen=True, slots=True)
class Place:
    """Name, directory and slot of one testbed. Everything else of it is derived from these."""

    name: str
    directory: Path
    slot: int
    rootless: bool

    @property
    def flags(self) -> str:
        """What names it on a command line, with a blank before; nothing for the default one."""
        name = "" if self.name == DEFAULT_NAME else f" --name {shlex.quote(self.name)}"
        usual = NAME.fullmatch(self.name) and self.directory == default_directory(self.name)
        return name if usual else f"{name} --dir {shlex.quote(str(self.directory))}"

    @property
    def network(self) -> str:
        """First three bytes of the nodes' addresses."""
        return f"10.78.{self.slot}"

    @property
    def controller_address(self) -> str:
        return "127.0.0.1" if self.rootless else f"{self.network}.254"

    @property
    def bridge(self) -> str:
        return f"se{self.slot}br"

    def link(self, index: int) -> str:
        """The host's end of a node's network cable."""
        return f"se{self.slot}v{index}"

    @property
    def port(self) -> int:
        if self.rootless:
            return FIRST_ROOTLESS_PORT + self.slot * PORTS_OF_ROOTLESS
        return FIRST_PORT + self.slot * 4

    def node_port(self, index: int) -> int:
        return self.port + 3 + index if self.rootless else self.port + 1

    @property
    def database_port(self) -> int:
        return self.port + 2

    @property
    def marker(self) -> Path:
        """The file that says that a directory is a testbed's, and which."""
        return self.directory / "testbed.json"

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "conf" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.directory / "munge" / "socket"

    @property
    def disk(self) -> Path:
        """A small file system of its own, that `fill-disk` fills."""
        return self.directory / "disk"

    def log(self, name: str) -> Path:
        return self.directory / "log" / f"{name}.log"

    def console(self, name: str) -> Path:
        """What a process of ours prints; Slurm's daemons also keep a log."""
        return self.directory / "log" / f"{name}.out"

    def pidfile(self, name: str) -> Path:
        return self.directory / "run" / f"{name}.process"


def user_name() -> str:
    """Name of the user we are, whatever the environment says. Raises UserMistake where there is none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise UserMistake(f"user {os.geteuid()} has no name, and Slurm needs one", fix="become another user") from error


def default_directory(name: str) -> Path:
    """Directory of a testbed by its name, one per user. Raises UserMistake for a name that cannot be used."""
    if not NAME.fullmatch(name):
        raise UserMistake(
            f"--name {name!r} cannot be used", fix="use small letters, digits and hyphens, 31 of them at most"
        )
    owner = "" if os.geteuid() == 0 else f"-{user_name()}"
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{name}{owner}"


def known_places() -> tuple[Place, ...]:
    """This user's testbeds in their usual directories, by name, whatever state they are in."""
    folders = (path for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if path.lstat().st_uid == os.geteuid())
    found = (read_marker(folder) for folder in folders)
    return tuple(sorted((known[0] for known in found if known), key=lambda place: place.name))


def checked_directory(directory: Path) -> Path:
    """The absolute path. Raises UserMistake when it is too long, not ours, or holds something else."""
    path = Path(os.path.abspath(directory))  # noqa: PTH100 - a link must stay visible
    if len(os.fsencode(path)) > LONGEST_DIRECTORY:
        raise UserMistake(f"--dir {path} is too long for a socket's path", fix="use at most 80 bytes")
    if re.search(r"[\s#\"'\\,%=\[\]]", str(path)):
        raise UserMistake(f"--dir {path} has a character that slurm.conf cannot hold", fix="use another directory")
    try:
        info = path.lstat()
    except FileNotFoundError:
        return path
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise UserMistake(f"--dir {path} is not a directory of yours", fix="use another directory")
    if not (path / "testbed.json").exists() and any(path.iterdir()):
        raise UserMistake(f"--dir {path} holds something that is no testbed", fix="use an empty or new directory")
    return path


def write_marker(place: Place, options: Options) -> None:
    fields = {
        "format": FORMAT,
        "name": place.name,
        "slot": place.slot,
        "rootless": place.rootless,
        "options": asdict(options),
    }
    draft = place.marker.with_suffix(".new")
    draft.write_text(json.dumps(fields, indent=1) + "\n")
    draft.replace(place.marker)


def read_marker(directory: Path) -> tuple[Place, Options] | None:
    """The testbed in a directory; None when there is none. Raises TestbedError for a damaged record."""
    path = directory / "testbed.json"
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']!r}")
        values = fields["options"] | {"users": tuple(fields["options"]["users"])}
        return Place(fields["name"], directory, fields["slot"], fields["rootless"]), Options(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise TestbedError(f"{path} cannot be read: {error}", fix="it was written by another release") from error


@contextlib.contextmanager
def exclusive(what: str, timeout_s: float) -> Iterator[None]:
    """Held by one process of this machine at a time; leaves no file, and ends with the process."""
    end = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind(f"\0slurm-elastic-testbed {what}")
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise TestbedError(f"another process has been holding {what} for {timeout_s:g} s") from error
                time.sleep(0.05)
        yield


def free_slot(name: str, options: Options) -> int:
    """A slot whose network and ports nobody on this machine uses. Hold `exclusive("slot")` until they are taken."""
    slots = ROOTLESS_SLOTS if options.rootless else SLOTS
    first = zlib.crc32(name.encode()) % slots
    used = () if options.rootless else used_networks()
    for offset in range(slots):
        place = Place(name, Path("/"), (first + offset) % slots, options.rootless)
        if options.rootless:
            ports = [place.port, *(place.node_port(index) for index in range(1, options.nodes + 1))]
        else:
            network = ipaddress.ip_network(f"{place.network}.0/24")
            if any(network.overlaps(other) for other in used):
                continue
            ports = [place.port, place.port + 1, place.database_port]
        if all(port_is_free(port) for port in ports):
            return place.slot
    raise TestbedError("no free network and ports for another testbed", fix="take one down first")


def used_networks() -> tuple[ipaddress.IPv4Network, ...]:
    """Networks that this machine has an address in or a route to (the default route apart)."""
    found = []
    for argv in (("ip", "-j", "-4", "route", "show", "table", "all"), ("ip", "-j", "-4", "addr")):
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=30, env={"PATH": search_path()}
        )
        if done.returncode:
            raise TestbedError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
        for entry in json.loads(done.stdout or "[]"):
            texts = [entry.get("dst", "default")] if "dst" in entry else []
            texts += [f"{a['local']}/{a['prefixlen']}" for a in entry.get("addr_info", []) if "local" in a]
            found += [
                ipaddress.IPv4Network(text, strict=False) for text in texts if text not in ("default", "0.0.0.0/0")
            ]
    return tuple(found)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
