"""What the launcher told this process. The only place of the library that reads environment variables.

Three launchers are understood: slurm-elastic (torchrun's variables plus SLURM_ELASTIC_*), torchrun itself, and none.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.errors import UserMistake

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the workers, in torchrun's words."""

    global_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the supervisor's workers know about their run."""

    directory: Path
    generation: int
    epoch: int
    node: str
    job_id: int
    resume: str  # directory name of the checkpoint to load; "" = from the start
    resume_step: int
    standby: bool = False  # wait for a seat in a generation that goes on; ranks are provisional


@dataclass(frozen=True, slots=True)
class Contract:
    """`ranks` None: no launcher set any. `run` None: standalone, there is no supervisor."""

    ranks: Ranks | None
    run: RunFacts | None


def read(environ: Mapping[str, str]) -> Contract:
    """The launcher's facts. Raises UserMistake when they are incomplete or not numbers."""
    ranks = _ranks(environ) if "RANK" in environ and "WORLD_SIZE" in environ else None
    run = _run(environ) if environ.get("SLURM_ELASTIC_RUN_DIR") else None
    return Contract(ranks, run)


def tell(environ: MutableMapping[str, str], generation: int, ranks: Ranks) -> None:
    """What a launcher would set for the generation that this process goes into: torch and others look there."""
    environ["RANK"] = str(ranks.global_rank)
    environ["WORLD_SIZE"] = str(ranks.world_size)
    environ["LOCAL_RANK"] = str(ranks.local_rank)
    environ["LOCAL_WORLD_SIZE"] = str(ranks.local_world_size)
    environ["SLURM_ELASTIC_GENERATION"] = str(generation)


def steer_to_interface(environ: MutableMapping[str, str], address: str) -> None:
    """Let gloo and NCCL talk over the interface that has `address`, unless the user chose one.

    Their own choice follows the host name, which on many clusters resolves to a loopback address.
    """
    name = interface_of(address)
    if name and name != "lo":
        environ.setdefault("GLOO_SOCKET_IFNAME", name)
        environ.setdefault("NCCL_SOCKET_IFNAME", name)


def interface_of(address: str) -> str:
    """Name of the network interface with this IPv4 address; "" when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def launched_tasks(environ: Mapping[str, str]) -> int:
    """How many processes the launcher of an MPI world says it started; 0 when it did not say."""
    for key in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environ.get(key, "").isdigit():
            return int(environ[key])
    return 0


def _ranks(environ: Mapping[str, str]) -> Ranks:
    return Ranks(
        global_rank=_number(environ, "RANK", 0),
        world_size=_number(environ, "WORLD_SIZE", 1),
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 1),
    )


def _run(environ: Mapping[str, str]) -> RunFacts:
    return RunFacts(
        directory=Path(environ["SLURM_ELASTIC_RUN_DIR"]),
        generation=_number(environ, "SLURM_ELASTIC_GENERATION", 0),
        epoch=_number(environ, "SLURM_ELASTIC_EPOCH", 0),
        node=environ.get("SLURM_ELASTIC_NODE", "") or socket.gethostname(),
        job_id=_number(environ, "SLURM_ELASTIC_JOB_ID", 0),
        resume=environ.get("SLURM_ELASTIC_RESUME", ""),
        resume_step=_number(environ, "SLURM_ELASTIC_RESUME_STEP", 0),
        standby=environ.get("SLURM_ELASTIC_STANDBY") == "1",
    )


def _number(environ: Mapping[str, str], key: str, default: int) -> int:
    text = environ.get(key, "")
    try:
        return int(text) if text else default
    except ValueError as broken:
        raise UserMistake(f"{key}={text!r} is not a number", fix="let the launcher set it") from broken
