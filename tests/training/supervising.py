"""A supervisor's end of the wire that follows a script, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.checkpoint.publish import publish
from slurm_elastic.rundir import RunDirectory, replace_json
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.link import Link
from slurm_elastic.wire.server import WireServer

RUN_YAML = """
run: {name: test, dir: ., command: [python, train.py]}
elastic: {graceful_shutdown_timeout: 10s}
batch: {global_batch_size: 8, micro_batch_size: 2}
checkpoint: {every_steps: 4, async: false}
control: {heartbeat: 200ms}
"""


class ScriptedSupervisor:
    """`heard`: (global rank, message) in order of arrival. `react` is called for each, in the server's thread."""

    def __init__(self, path: Path, react: Callable[[ScriptedSupervisor, Link, m.AnyMessage], None]) -> None:
        self.run = RunDirectory(path)
        self.run.create()
        self.run.config.write_text(RUN_YAML)
        self.heard: list[tuple[int, m.AnyMessage]] = []
        self.links: dict[int, Link] = {}
        self._react = react
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(10)

    def environment(self, generation: int, resume: str = "") -> dict[str, str]:
        return {
            "SLURM_ELASTIC_RUN_DIR": str(self.run.path),
            "SLURM_ELASTIC_GENERATION": str(generation),
            "SLURM_ELASTIC_EPOCH": "1",
            "SLURM_ELASTIC_NODE": "here",
            "SLURM_ELASTIC_JOB_ID": "7",
            "SLURM_ELASTIC_RESUME": resume,
        }

    def said(self, kind: type[m.Message]) -> list[tuple[int, m.AnyMessage]]:
        return [(rank, message) for rank, message in self.heard if isinstance(message, kind)]

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        self._loop.close()

    # ---- Handler, in the server's thread

    def connected(self, link: Link, hello: m.AgentHello | m.WorkerHello) -> m.Welcome | m.Refused:
        assert isinstance(hello, m.WorkerHello)
        self.links[hello.global_rank] = link
        return m.Welcome(epoch=1, generation=hello.generation, heartbeat_s=0.2)

    def received(self, link: Link, message: m.AnyMessage) -> None:
        assert isinstance(link.hello, m.WorkerHello)
        self.heard.append((link.hello.global_rank, message))
        self._react(self, link, message)

    def closed(self, link: Link, reason: str) -> None:
        return

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await WireServer.start("127.0.0.1", self.run.read_token(), self)
        replace_json(self.run.endpoint, {"epoch": 1, "host": server.host, "port": server.port}, durable=False)
        self._ready.set()
        await self._over.wait()
        await server.close()


def publishing(supervisor: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
    """What a supervisor does with Saved."""
    if isinstance(message, m.Saved):
        publish(supervisor.run.checkpoints, message.directory, message.step)
        link.send(m.Published(step=message.step, ok=True))
