"""The record of committed steps, written by rank 0 off the critical path: hashing and sending happen in a thread."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slurm_elastic.errors import WireError
from slurm_elastic.rundir import replace_text
from slurm_elastic.training.data import Indices, samples_sha256
from slurm_elastic.wire.messages import StepDone

SEND_EVERY_S = 0.25


class Entry(NamedTuple):
    """One committed step as the boundary left it. `time`: Unix seconds at which the step was complete."""

    step: int
    world: int
    indices: Indices
    loss: float | None
    lr: float | None
    time: float

    def hashed(self) -> StepDone:
        return StepDone(
            step=self.step,
            world=self.world,
            samples=len(self.indices),
            samples_sha256=samples_sha256(self.indices),
            loss=self.loss,
            lr=self.lr,
            time=self.time,
        )


class Ledger:
    """`add` per step, `flush` before anything that must come after those steps. `sink` gets them in order, once."""

    def __init__(self, sink: Callable[[tuple[StepDone, ...]], None], *, every_s: float = SEND_EVERY_S) -> None:
        self._sink = sink
        self._every_s = every_s
        self._pending: deque[Entry] = deque()  # appended to while another thread takes
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._failure: OSError | WireError | None = None
        self._thread = threading.Thread(target=self._run, name="slurm-elastic ledger", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Raises what an earlier sending in the background raised (OSError, WireError)."""
        if self._failure is not None:
            raise self._failure
        self._pending.append(entry)

    def flush(self) -> None:
        """Hand over all that was added. Raises what the sink raises."""
        with self._sending:
            entries = []
            while self._pending:
                entries.append(self._pending.popleft().hashed())
            if entries:
                self._sink(tuple(entries))

    def close(self) -> None:
        self._closed.set()
        self.flush()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self.flush()
            except (OSError, WireError) as broken:
                self._failure = broken
                return


class LedgerFile:
    """ledger.jsonl of a standalone run; under a supervisor only that one writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._generation = 1

    def last_generation(self) -> int:
        """0 when nothing was written yet."""
        return max((int(line["generation"]) for line in self._lines()), default=0)

    def begin(self, generation: int, step: int) -> None:
        """Go on as `generation` after `step`. Lines of later steps are dropped: those steps will be done again."""
        self._generation = generation
        if self._path.exists():
            kept = [line for line in self._lines() if line["step"] <= step]
            replace_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))

    def _lines(self) -> list[dict[str, Any]]:
        """Whole lines; a crash may have torn the last one."""
        lines = []
        for text in self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else ():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines

    def write(self, steps: tuple[StepDone, ...]) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            out.writelines(self._line(step) for step in steps)
            out.flush()
            os.fsync(out.fileno())

    def _line(self, done: StepDone) -> str:
        line = {
            "step": done.step,
            "generation": self._generation,
            "world": done.world,
            "samples": done.samples,
            "samples_sha256": done.samples_sha256,
            "loss": done.loss,
            "lr": done.lr,
        }
        return json.dumps(line) + "\n"
