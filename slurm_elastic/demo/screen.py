"""Live progress on the terminal: what happens, as lines that stay, above one line with the run's state."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slurm_elastic.observe.status import Status

PLAIN_EVERY_S = 10.0  # where the output is not a terminal


class Screen:
    """A context manager; `say` and `show` while inside."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._began = time.monotonic()
        self._last_plain = 0.0
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"[{self._clock()}] {text}", markup=False, soft_wrap=True)

    def show(self, status: Status) -> None:
        """The run's state, replaced by the next one; on a log file only now and then."""
        line = self._line(status)
        if self._console.is_terminal:
            self._live.update(Text(line))
        elif time.monotonic() - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self.say(line)

    def _line(self, status: Status) -> str:
        done = status.step / status.total_steps if status.total_steps else 0.0
        bar = "#" * round(20 * done)
        loss = f"loss {status.loss:.3f}" if status.loss is not None else ""
        return (
            f"  [{bar:20}] step {status.step}/{status.total_steps or '?'}  {status.workers} workers  "
            f"{status.steps_per_s:.1f} steps/s  {loss}  generation {status.generation} {status.state}"
        )

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60}:{seconds % 60:02}"
