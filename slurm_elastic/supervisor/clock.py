"""Unix time that does not jump: timeouts run on it, and Slurm's deadlines are compared with it.

A node's clock may be set forward or back while we run. A timeout must not fire by that, and a deadline must not be
missed for long: so this clock follows the node's, but only at half to one and a half times the true pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_CORRECTION = 0.5  # seconds per second


class SteadyClock:
    """Called for the time. Starts with the node's clock. For one thread."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._now, self._read_at = wall(), monotonic()

    def __call__(self) -> float:
        read_at = self._monotonic()
        passed_s = read_at - self._read_at
        off_s = self._wall() - (self._now + passed_s)
        most_s = MOST_CORRECTION * passed_s
        self._now += passed_s + max(-most_s, min(most_s, off_s))
        self._read_at = read_at
        return self._now
