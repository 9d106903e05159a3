"""The last committed steps, kept by every worker: whoever becomes rank 0 can complete the ledger after a loss."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.training.ledger import Entry, Ledger

KEPT_STEPS = 4096  # indices are views into the epoch's permutation: some 100 bytes each


class Recent:
    """`note` at every commit; `add` when the loss of a step has come together."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self._entries: dict[int, Entry] = {}  # by step, in order
        self._kept = kept

    def note(self, entry: Entry) -> None:
        """A step that was committed; its loss is not known yet."""
        self._entries[entry.step] = entry
        if len(self._entries) > self._kept:
            del self._entries[next(iter(self._entries))]

    def add(self, entry: Entry) -> None:
        if entry.step in self._entries:
            self._entries[entry.step] = self._entries[entry.step]._replace(loss=entry.loss)

    def after(self, step: int, until: int) -> Sequence[Entry]:
        """The steps beyond `step`, up to and with `until`, as far back as they are kept."""
        return [entry for entry in self._entries.values() if step < entry.step <= until]


class Both:
    """Complete each step here, and give it to the ledger where there is one."""

    def __init__(self, recent: Recent, ledger: Ledger | None) -> None:
        self._recent = recent
        self._ledger = ledger

    def add(self, entry: Entry) -> None:
        self._recent.add(entry)
        if self._ledger is not None:
            self._ledger.add(entry)
