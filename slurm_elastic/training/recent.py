"""The last committed steps, kept by every worker: whoever becomes rank 0 can complete the ledger after a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slurm_elastic.training.ledger import Entry

KEPT_STEPS = 4096  # indices are views into the epoch's permutation: some 100 bytes each


class Recent:
    """Steps in order, each once."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self._entries: deque[Entry] = deque(maxlen=kept)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def after(self, step: int, until: int) -> Sequence[Entry]:
        """The steps beyond `step`, up to and with `until`, as far back as they are kept."""
        return [entry for entry in self._entries if step < entry.step <= until]

    def forget_after(self, step: int) -> None:
        """What this worker did beyond `step` did not become part of the run."""
        while self._entries and self._entries[-1].step > step:
            self._entries.pop()
