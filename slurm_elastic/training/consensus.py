"""Agreement among ranks, one protocol for every kind of world: a sum that runs beside the next step, and an exchange.

A flag that any rank raised is heard by all of them at the same boundary: the sum of the flags is not zero (what a MAX
would say, but the same collective can also carry a loss). Everything here is tiny, on the CPU, and on a channel of
its own, so that it can neither delay nor be confused with the collectives of the training.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist


class Agreement(Protocol):
    """All ranks call the same methods in the same order. `launch` and `take` alternate."""

    def launch(self, values: Sequence[float]) -> None:
        """Begin to sum `values` over all ranks; returns at once."""
        ...

    def take(self) -> list[float]:
        """The sums of the last launch; waits for the slowest rank's launch."""
        ...

    @property
    def is_ready(self) -> bool:
        """Between `launch` and `take`: whether `take` would not wait."""
        ...

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's values, by global rank. Blocks; not to be called between `launch` and `take`."""
        ...

    def close(self) -> None:
        """No more calls will come: this world ends before the process does. Not collective."""
        ...


class OneRank:
    """A world of one agrees with itself."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def launch(self, values: Sequence[float]) -> None:
        self._values = list(values)

    def take(self) -> list[float]:
        return self._values

    @property
    def is_ready(self) -> bool:
        return True

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def close(self) -> None:
        return


class TorchAgreement:
    """By torch.distributed on a gloo group of its own. Making it is collective.

    A thread launches the sums, in the order they are asked for: a launch takes 0.1 ms and more when gloo's threads wake
    up on a busy processor. The thread never waits for another rank, so it can always be ended.
    """

    def __init__(self) -> None:
        self._group: dist.ProcessGroup = dist.new_group(backend="gloo")
        self._size = dist.get_world_size()
        self._options = dist.AllreduceOptions()  # SUM, unless said otherwise
        self._numbers = np.empty(0)
        self._sums = torch.empty(0)
        self._asked: SimpleQueue[Sequence[float] | None] = SimpleQueue()
        self._launched: SimpleQueue[Exception | None] = SimpleQueue()  # what a launch raised
        self._work: Any = None
        self._thread = threading.Thread(target=self._run, name="slurm-elastic agreement", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def launch(self, values: Sequence[float]) -> None:
        self._asked.put(values)

    def take(self) -> list[float]:
        failure = self._launched.get()
        if failure is not None:
            raise failure
        self._work.wait()
        sums: list[float] = self._numbers.tolist()
        return sums

    @property
    def is_ready(self) -> bool:
        return not self._launched.empty() and (self._work is None or bool(self._work.is_completed()))

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(everyone, mine, group=self._group)
        return [values.tolist() for values in everyone]

    def _run(self) -> None:
        while (values := self._asked.get()) is not None:
            try:
                self._work = self._launch(values)
                self._launched.put(None)
            except Exception as broken:  # noqa: BLE001 - take raises it
                self._launched.put(broken)

    def _launch(self, values: Sequence[float]) -> Any:
        if len(values) != len(self._numbers):
            self._numbers = np.empty(len(values))
            self._sums = torch.from_numpy(self._numbers)  # one memory: filled and read without torch's per-call cost
        self._numbers[:] = values
        # The group's own method: dist.all_reduce does the same after a quarter of its time in Python.
        return self._group.allreduce([self._sums], self._options)

    def close(self) -> None:
        self._end()
        atexit.unregister(self._end)
        self._work = None
        del self._group  # it must be gone before the default group is

    def _end(self) -> None:
        """At exit, so that the thread is not inside of torch when Python ends. In a forked child there is no thread."""
        self._asked.put(None)
        self._thread.join()


class MpiAgreement:
    """By mpi4py, on a duplicate of the world's communicator. Making it is collective."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator.Dup()
        self._mine = self._sums = np.empty(0)
        self._request: Any = None

    def launch(self, values: Sequence[float]) -> None:
        self._mine = np.array(values, dtype=np.float64)  # must live until the request is complete
        self._sums = np.empty_like(self._mine)
        self._request = self._communicator.Iallreduce(self._mine, self._sums)

    def take(self) -> list[float]:
        self._request.Wait()
        sums: list[float] = self._sums.tolist()
        return sums

    @property
    def is_ready(self) -> bool:
        return bool(self._request.Test())

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        mine = np.array(values, dtype=np.float64)
        everyone = np.empty((self._communicator.Get_size(), len(mine)))
        self._communicator.Allgather(mine, everyone)
        rows: list[list[float]] = everyone.tolist()
        return rows

    def close(self) -> None:
        self._communicator.Free()
