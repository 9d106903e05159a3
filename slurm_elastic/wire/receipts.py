"""When a peer may be told that its messages have arrived for good: not before they would survive our own death.

The echo of a beat confirms all that came before it, and what is confirmed is never sent again. So a message that must
first reach the disk holds back the echoes of the beats behind it. No socket here.
"""

from __future__ import annotations

from collections import deque


class Place:
    """One beat, or one message that is not safe yet, in the order of arrival."""

    __slots__ = ("is_beat", "is_safe")

    def __init__(self, is_beat: bool) -> None:
        self.is_beat = is_beat
        self.is_safe = is_beat


class Receipts:
    """Of one connection."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Place] | None = None  # there are thousands of connections, and few ever hold a receipt

    def hold(self) -> Place:
        """For the message that just came; to be handed to `safe` when it is safe."""
        place = Place(is_beat=False)
        self._waiting = self._waiting or deque()
        self._waiting.append(place)
        return place

    def beat(self) -> bool:
        """Whether a beat that just came is confirmed at once; otherwise a later `safe` will say so."""
        if not self._waiting:
            return True
        self._waiting.append(Place(is_beat=True))
        return False

    def safe(self, place: Place) -> int:
        """How many beats, whose echo had to wait, are confirmed now."""
        place.is_safe = True
        confirmed = 0
        while self._waiting and self._waiting[0].is_safe:
            confirmed += self._waiting.popleft().is_beat
        return confirmed
