"""One suite for all transports: gloo, shared memory, both together, and MPI where mpirun is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from slurm_elastic.migrate.transport import Transport
from slurm_elastic.migrate.transport_routed import RoutedTransport
from slurm_elastic.migrate.transport_shared import SharedMemoryTransport
from slurm_elastic.migrate.transport_torch import TorchTransport
from slurm_elastic.training.groups import Sockets
from tests.contract import transport_scenarios as scenarios
from tests.contract.transport_scenarios import BAD, DEADLY, GOOD, SIZE, name
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

KINDS = ("gloo", "shared", "routed")
ROOT = Path(__file__).parents[2]
MEETING_S = 30.0


def store_at(port: int, *, served: bool = False) -> Any:
    """The test's own process serves it: it outlives all workers."""
    timeout = timedelta(seconds=MEETING_S)
    return dist.TCPStore("127.0.0.1", port, is_master=served, timeout=timeout, wait_for_workers=False)


def gloo(rank: int, store: Any, key: str) -> TorchTransport:
    sockets = Sockets()
    with sockets.noting():
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=MEETING_S))
    return TorchTransport({name(peer): peer for peer in range(SIZE)}, group, sever=sockets.cut)


def shared(rank: int, store: Any, key: str) -> SharedMemoryTransport:
    transport = SharedMemoryTransport(name(rank))
    store.set(f"{key}/{rank}", transport.address)
    addresses = {name(peer): store.get(f"{key}/{peer}").decode() for peer in range(SIZE)}
    assert all(SharedMemoryTransport.reachable(address) for address in addresses.values())
    transport.introduce(addresses, MEETING_S)
    return transport


def routed(rank: int, store: Any, key: str) -> Transport:
    """d0 and d1 are neighbours, d2 is far from both."""
    near, far = shared(rank, store, key), gloo(rank, store, key)
    return RoutedTransport(near, far, lambda peer: "d2" not in (peer, name(rank)))


MAKERS = {"gloo": gloo, "shared": shared, "routed": routed}


def play(rank: int, port: int, kind: str, names: tuple[str, ...]) -> None:
    store = store_at(port)
    dist.init_process_group("gloo", store=dist.PrefixStore("world", store), rank=rank, world_size=SIZE)
    for scenario in names:
        getattr(scenarios, scenario)(lambda: MAKERS[kind](rank, store, scenario), rank)  # noqa: B023
        print(f"passed {scenario} {rank}", flush=True)


def run(kind: str, names: tuple[str, ...], log: Path) -> list[int]:
    store = store_at(0, served=True)
    world = WorldOfProcesses(SIZE, play, store.port, kind, names, log=log)
    return world.wait(90, kill_rest=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_works(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    codes = run(kind, tuple(scenario.__name__ for scenario in GOOD), log)

    assert codes == [0] * SIZE, log.read_text()


@pytest.mark.parametrize("scenario", [one.__name__ for one in BAD])
@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_fails_for_everybody_and_soon(kind: str, scenario: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    codes = run(kind, (scenario,), log)

    assert codes == [0] * SIZE, log.read_text()


@pytest.mark.parametrize("scenario", [one.__name__ for one in DEADLY])
@pytest.mark.parametrize("kind", KINDS)
def test_death(kind: str, scenario: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    codes = run(kind, (scenario,), log)

    assert codes == [0, -9, 0], log.read_text()


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_mpi() -> None:
    pytest.importorskip("mpi4py")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(SIZE), sys.executable]
    command += ["-m", "tests.contract.transport_scenarios"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == len(GOOD) + len(BAD), done.stdout
