"""Messages that wait to be sent, or to be confirmed. Thread-safe; no socket here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from slurm_elastic.errors import WireError

MOST_KEPT = 100_000


class Outbox:
    """A queue that survives a lost connection.

    The sending thread takes messages in order (`take`), notes how far it was (`mark`) whenever it sends a beat, and
    hands the mark back when the beat's echo arrives (`confirm`): all before it was received. After a lost connection
    `rewind` puts what was not confirmed back to the front: it may arrive twice, but never not at all.
    """

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._most_kept = most_kept
        self._pending: deque[tuple[bytes, bool]] = deque()
        self._unconfirmed: deque[bytes] = deque()
        self._taken = 0  # kept messages taken so far; those confirmed are the first of them
        self._waiting = 0
        self._condition = threading.Condition()

    def put(self, body: bytes, keep: bool) -> None:
        """Raises WireError when too many wait already: the supervisor has been away for too long."""
        with self._condition:
            if len(self._pending) + len(self._unconfirmed) >= self._most_kept:
                raise WireError(f"{self._most_kept} messages wait for the supervisor; no more are kept")
            self._pending.append((body, keep))

    def take(self) -> bytes | None:
        with self._condition:
            if not self._pending:
                return None
            body, keep = self._pending.popleft()
            if keep:
                self._unconfirmed.append(body)
                self._taken += 1
            return body

    def mark(self) -> int:
        with self._condition:
            return self._taken

    def confirm(self, mark: int) -> None:
        with self._condition:
            while self._unconfirmed and self._taken - len(self._unconfirmed) < mark:
                self._unconfirmed.popleft()
            self._condition.notify_all()

    def rewind(self) -> None:
        """The connection is lost: what was not confirmed is sent again first; what need not be kept is dropped."""
        with self._condition:
            kept = [(body, True) for body in self._unconfirmed]
            kept += [(body, True) for body, keep in self._pending if keep]
            self._taken -= len(self._unconfirmed)
            self._unconfirmed.clear()
            self._pending = deque(kept)

    @property
    def has_pending(self) -> bool:
        with self._condition:
            return bool(self._pending)

    @property
    def is_awaited(self) -> bool:
        """Whether someone waits for confirmation."""
        return self._waiting > 0

    def wait_confirmed(self, timeout_s: float, wake: Callable[[], None]) -> bool:
        """Whether everything was confirmed within `timeout_s`; `wake` is called once to hurry the sender."""
        with self._condition:
            self._waiting += 1
            try:
                wake()
                return self._condition.wait_for(lambda: not self._pending and not self._unconfirmed, timeout_s)
            finally:
                self._waiting -= 1
