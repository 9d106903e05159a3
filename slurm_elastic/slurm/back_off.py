"""How long to leave a silent controller alone. A value: each answer or silence makes a new one."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, LONGEST_S = 1.0, 20.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """`silences` in a row; no further question before `until` (seconds of the caller's clock)."""

    silences: int = 0
    until: float = 0.0

    def after_silence(self, now: float) -> BackOff:
        """1, 2, 4, 8, 16, 20, 20, ... seconds of peace."""
        delay = min(LONGEST_S, FIRST_S * 2.0 ** min(self.silences, 10))
        return BackOff(self.silences + 1, now + delay)

    def wait_s(self, now: float) -> float:
        """Seconds still to wait; 0 when asking is allowed."""
        return max(0.0, self.until - now)
