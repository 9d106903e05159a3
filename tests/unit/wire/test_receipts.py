from __future__ import annotations

from slurm_elastic.wire.receipts import Receipts


def test_a_beat_behind_nothing_is_confirmed_at_once() -> None:
    assert Receipts().beat()


def test_beats_wait_for_all_that_came_before_them_and_for_nothing_else() -> None:
    receipts = Receipts()
    first = receipts.hold()
    assert not receipts.beat()
    second = receipts.hold()
    assert not receipts.beat()

    assert receipts.safe(second) == 0
    assert receipts.safe(first) == 2
    assert receipts.beat()


def test_a_later_message_does_not_hold_an_earlier_beat_back() -> None:
    receipts = Receipts()
    first = receipts.hold()
    receipts.beat()
    receipts.hold()

    assert receipts.safe(first) == 1
