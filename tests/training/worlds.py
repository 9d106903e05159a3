"""Worlds of real processes without Slurm: forked from a server that has torch imported, so that one starts in 20 ms."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOAD = [
    "torch",
    "torch._dynamo",
    "numpy.random",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "slurm_elastic.training.session",
]


@dataclass(frozen=True)
class Place:
    """One worker's place, as torchrun would tell it."""

    global_rank: int
    size: int
    port: int

    def environment(self) -> dict[str, str]:
        return {
            "RANK": str(self.global_rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.global_rank),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "OMP_NUM_THREADS": "1",
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WorldOfProcesses:
    """Starts `target(rank, *arguments)` in `size` processes; `wait` gives their exit codes by rank."""

    def __init__(
        self, size: int, target: Callable[..., None], *arguments: Any, log: Path, extra: dict[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        port = free_port()
        self._log = log
        self._processes: list[ForkServerProcess] = []
        for rank in range(size):
            environment = Place(rank, size, port).environment() | (extra or {})
            process = context.Process(target=_enter, args=(environment, log, target, rank, arguments))
            process.start()
            self._processes.append(process)

    def wait(self, timeout_s: float = 60.0, *, kill_rest: bool = True) -> list[int]:
        """Exit codes (negative: signal). When one fails the rest is killed, as a supervisor would do, or goes on."""
        deadline = time.monotonic() + timeout_s
        sentinels = {process.sentinel: process for process in self._processes}
        while sentinels:
            left_s = deadline - time.monotonic()
            ready = multiprocessing.connection.wait(list(sentinels), max(0.0, left_s))
            if not ready:
                self.kill()
                raise TimeoutError(f"workers still ran after {timeout_s} s:\n{self._log.read_text()}")
            ended = [sentinels.pop(sentinel) for sentinel in ready]  # type: ignore[index]
            for process in ended:
                process.join()
            if kill_rest and any(process.exitcode for process in ended):
                self.kill()
        return [process.exitcode if process.exitcode is not None else -99 for process in self._processes]

    def signal(self, rank: int, number: int) -> None:
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join()


def die() -> None:
    """As `kill -9` of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _enter(environment: dict[str, str], log: Path, target: Callable[..., None], rank: int, arguments: Any) -> None:
    os.environ.update(environment)
    with log.open("a", encoding="utf-8") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.stdout.flush()
    import torch

    torch.set_num_threads(1)
    target(rank, *arguments)
    import atexit

    atexit._run_exitfuncs()  # multiprocessing's children leave by os._exit, which skips them
