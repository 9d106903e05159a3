"""Two transports as one: shared memory for the peers on this node, another one for the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from slurm_elastic.migrate.transport import Message, Traffic, Transfer, Transport


class RoutedTransport:
    """`is_near(peer)` chooses, and must choose alike on both ends. `far` must move on while nobody waits for it, as
    gloo and nccl do: the near transfer is waited for first.
    """

    def __init__(self, near: Transport, far: Transport, is_near: Callable[[str], bool]) -> None:
        self._near = near
        self._far = far
        self._is_near = is_near

    @property
    def traffic(self) -> Traffic:
        near, far = self._near.traffic, self._far.traffic
        return Traffic(Counter(near.sent + far.sent), Counter(near.received + far.received))

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Posted:
        near = (self._of(sends, True), self._of(receives, True))
        far = (self._of(sends, False), self._of(receives, False))
        # The far one first: its bytes travel while this process copies those of the near one.
        begun = [transport.post(*these) for transport, these in ((self._far, far), (self._near, near))]
        return _Posted(begun[::-1])

    def _of(self, messages: Sequence[Message], near: bool) -> list[Message]:
        return [message for message in messages if self._is_near(message.peer) == near]

    def abort(self) -> None:
        self._near.abort()
        self._far.abort()

    def close(self) -> None:
        self._near.close()
        self._far.close()


class _Posted:
    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self._transfers = transfers

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for transfer in self._transfers:
            transfer.wait(max(0.0, deadline - time.monotonic()))
