"""Where the workers of a new generation meet: a store that one of them keeps, and small blobs that all of them read.

No process group is needed to meet, so it works while the old one is broken and the new one is not there yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed as dist

from slurm_elastic.errors import RegroupError

_LOOK_EVERY_S = 0.5  # how often somebody who waits looks whether it still makes sense
_TRY_S = 2.0  # to connect


Store = Any  # torch.distributed.Store, which its stubs do not export


def prefixed(store: Store, prefix: str) -> Store:
    """A view of a store whose keys collide with nobody else's."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


class OwnStore:
    """The store that this process keeps for its whole life: where others meet when it is the first of a generation."""

    def __init__(self) -> None:
        """It listens where others reach this host, too. The port is chosen by the system."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.port = int(self.store.port)


def store_of(address: str, port: int, timeout_s: float, called_off: Callable[[], str]) -> Store:
    """A connection to the store of another worker, which may not be there yet, or any more. Raises RegroupError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return dist.TCPStore(  # type: ignore[attr-defined]
                address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_TRY_S)
            )
        except RuntimeError as broken:
            reason = called_off() or ("" if time.monotonic() < deadline else str(broken).partition("\n")[0])
            if reason:
                raise RegroupError(
                    f"cannot reach the store of the first worker at {address}:{port}: {reason}"
                ) from broken


class Meeting:
    """`size` workers that call the same methods in the same order; this one is number `me`.

    `called_off` is asked while we wait; a text ends the meeting with RegroupError.
    """

    def __init__(
        self, store: Store, me: int, size: int, *, timeout_s: float, called_off: Callable[[], str] = lambda: ""
    ) -> None:
        self.me = me
        self.size = size
        self._store = store
        self._timeout_s = timeout_s
        self._called_off = called_off

    def exchange(self, topic: str, mine: bytes) -> Sequence[bytes]:
        """What each of us said about `topic`, by number. Number 0 collects, so that the store serves n and not n^2."""
        self._store.set(f"{topic}/{self.me}", mine)
        if self.me == 0:
            keys = [f"{topic}/{number}" for number in range(self.size)]
            self._await(keys)
            everyone = [bytes(said) for said in self._store.multi_get(keys)]
            self._store.set(f"{topic}/all", msgspec.msgpack.encode(everyone))
            return everyone
        self._await([f"{topic}/all"])
        return msgspec.msgpack.decode(self._store.get(f"{topic}/all"), type=list[bytes])

    def _await(self, keys: list[str]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._store.wait(keys, timedelta(seconds=_LOOK_EVERY_S))
                return
            except dist.DistStoreError as late:
                reason = self._called_off()
                if not reason and time.monotonic() > deadline:
                    reason = f"{keys[0]} did not come within {self._timeout_s:.0f} s"
                if reason:
                    raise RegroupError(reason) from late
            except RuntimeError as broken:
                raise RegroupError(f"the store of the first worker is gone: {broken}") from broken
