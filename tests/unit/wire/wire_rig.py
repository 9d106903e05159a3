"""A server in a thread of its own and a handler that remembers: for tests of both ends together."""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Limits, Link, WireServer


class Remembering:
    """Welcomes everyone (or answers `verdict`), and keeps what it is told."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.verdict: m.Refused | None = None
        self.links: list[Link] = []
        self.hellos: list[m.AgentHello | m.WorkerHello] = []
        self.heard: list[m.AnyMessage] = []
        self.ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.arrivals: queue.SimpleQueue[m.AnyMessage] = queue.SimpleQueue()
        self.on_connected: Callable[[Link], None] = lambda link: None
        self.on_received: Callable[[Link], object] = lambda link: None

    def connected(self, link: Link, hello: m.AgentHello | m.WorkerHello) -> m.Welcome | m.Refused:
        self.links.append(link)
        self.hellos.append(hello)
        self.on_connected(link)
        return self.verdict or m.Welcome(epoch=self.epoch, generation=3, heartbeat_s=0.1)

    def received(self, link: Link, message: m.AnyMessage) -> None:
        if not isinstance(message, m.Beat):
            self.heard.append(message)
            self.on_received(link)
        self.arrivals.put(message)

    def closed(self, link: Link, reason: str) -> None:
        self.ends.put(reason)


class ServerThread:
    """A supervisor's wire server on loopback, and the run directory that leads to it."""

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDirectory(path / "run")
        self.run_dir.create()
        self.token = self.run_dir.read_token()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server: WireServer | None = None

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def soon(self, call: Callable[..., Any], *args: Any) -> None:
        self._loop.call_soon_threadsafe(call, *args)

    def start(self, handler: Any, *, epoch: int = 1, limits: Limits | None = None) -> WireServer:
        self.server = self.call(WireServer.start("127.0.0.1", self.token, handler, limits=limits))
        replace_json(
            self.run_dir.endpoint, {"epoch": epoch, "host": self.server.host, "port": self.server.port, "pid": 1}
        )
        return self.server

    def stop_server(self) -> None:
        if self.server is not None:
            self.call(self.server.close())
            self.server = None

    def close(self) -> None:
        self.stop_server()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def worker_hello(address: str = "") -> m.WorkerHello:
    return m.WorkerHello(generation=3, node="n1", local_rank=0, pid=1, stage="gate", address=address, port=4000)


def agent_hello(address: str = "") -> m.AgentHello:
    return m.AgentHello(job_id=7, role="companion", nodes=("n1",), incarnation=secrets.token_hex(4))
