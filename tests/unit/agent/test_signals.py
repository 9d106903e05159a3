"""The handler of notices of a worker: who hears what, and whom it leaves alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from slurm_elastic.signals import NOTICES, Notices


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NOTICES}
    for number in NOTICES:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_came_while_nobody_listened_is_told_to_the_next_who_does() -> None:
    notices, heard = Notices.of_this_process(), []
    os.kill(os.getpid(), signal.SIGTERM)
    notices.listen(heard.append)
    os.kill(os.getpid(), signal.SIGUSR2)
    notices.listen(None)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == ["SIGTERM", "SIGUSR2"]
    notices.listen(heard.append)
    assert heard[2:] == ["SIGUSR1"]


def test_there_is_one_in_a_process_also_when_the_script_took_a_signal_for_itself() -> None:
    notices = Notices.of_this_process()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert Notices.of_this_process() is notices
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_handlers_of_a_script_stay() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    notices = Notices.of_this_process()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGUSR1) is notices
