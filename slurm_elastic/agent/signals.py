"""Signals that announce the end of an allocation, kept until someone wants them."""

from __future__ import annotations

import signal
from collections.abc import Callable

NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def hear_notices(heard: Callable[[str], None]) -> None:
    """Call `heard` with the name of each notice signal from now on, also of one that came while it was blocked.

    In the main thread only. `heard` runs as a signal handler. Programs started later get the default actions.
    """
    for number in NOTICES:
        signal.signal(number, lambda got, _frame: heard(signal.Signals(got).name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
