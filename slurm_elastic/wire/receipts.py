"""When a peer may be told that its messages have arrived for good: not before they would survive our own death.

The echo of a beat confirms all that came before it, and what is confirmed is never sent again. So a message that must
first reach the disk holds back the echoes of the beats behind it. No socket here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class _Place:
    """One beat, or one message that is not safe yet, in the order of arrival."""

    __slots__ = ("is_beat", "is_safe")

    def __init__(self, is_beat: bool) -> None:
        self.is_beat = is_beat
        self.is_safe = is_beat


class Receipts:
    """Of one connection. `confirm` is called for a beat whose echo had to wait."""

    def __init__(self, confirm: Callable[[], None]) -> None:
        self._confirm = confirm
        self._waiting: deque[_Place] = deque()

    def hold(self) -> Callable[[], None]:
        """For the message that just came: to be called once when it is safe."""
        place = _Place(is_beat=False)
        self._waiting.append(place)

        def safe() -> None:
            place.is_safe = True
            self._go_on()

        return safe

    def beat(self) -> bool:
        """Whether a beat that just came is confirmed at once; otherwise it will be by `confirm`."""
        if not self._waiting:
            return True
        self._waiting.append(_Place(is_beat=True))
        return False

    def _go_on(self) -> None:
        while self._waiting and self._waiting[0].is_safe:
            if self._waiting.popleft().is_beat:
                self._confirm()
