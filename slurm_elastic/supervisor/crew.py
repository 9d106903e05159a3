"""Coroutines that run beside the loop. The first that fails ends the supervisor: half a supervisor helps nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Crew:
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failure: asyncio.Future[BaseException] | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Until `main` returns. Raises what `main`, or the first of the spawned ones, raised."""
        self._failure = asyncio.get_running_loop().create_future()
        leader = self.spawn(main)
        waiting: set[asyncio.Future[Any]] = {leader, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            raise self._failure.result()

    async def dismiss(self) -> None:
        """Cancel all that still runs and wait for its end."""
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        broken = None if task.cancelled() else task.exception()
        if broken is not None and self._failure is not None and not self._failure.done():
            self._failure.set_result(broken)
