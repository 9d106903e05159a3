"""Signals that announce the end of an allocation: heard, kept until someone wants them, never fatal by accident."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType

NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)

_KEPT = 8


def hear_notices(heard: Callable[[str], None]) -> None:
    """Call `heard` with the name of each notice signal from now on, also of one that came while it was blocked.

    In the main thread only. `heard` runs as a signal handler. Programs started later get the default actions.
    """
    for number in NOTICES:
        signal.signal(number, lambda got, _frame: heard(signal.Signals(got).name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)


class Notices:
    """The signal handler of a worker: a notice never ends it, and one listener at a time is told its name.

    A script that handles these signals itself replaces it and is left alone. Forked children get the default SIGTERM
    back: multiprocessing ends its children by it.
    """

    def __init__(self) -> None:
        self._listener: Callable[[str], object] | None = None
        self._kept: deque[str] = deque(maxlen=_KEPT)

    @classmethod
    def of_this_process(cls) -> Notices:
        """The one that handles signals here already; else a new one takes those that nobody handles.

        Raises ValueError outside the main thread, which alone may handle signals.
        """
        for number in NOTICES:
            if isinstance(known := signal.getsignal(number), cls):
                return known
        made = cls()
        made._install()
        return made

    def listen(self, listener: Callable[[str], object] | None) -> None:
        """Who hears from now on, and of what came while nobody did (None: nobody). It runs as a signal handler."""
        self._listener = listener
        while listener is not None and self._kept:
            listener(self._kept.popleft())

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._listener is None:
            self._kept.append(name)
        else:
            self._listener(name)

    def _install(self) -> None:
        """Signals are blocked around a fork, or one that is sent to a child in its first moments would be lost."""
        masks = threading.local()

        def before() -> None:
            masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)

        def in_parent() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

        def in_child() -> None:
            for number in NOTICES:
                if signal.getsignal(number) is self:
                    signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

        for number in NOTICES:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(number, self)
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
