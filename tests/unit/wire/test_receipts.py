from __future__ import annotations

from slurm_elastic.wire.receipts import Receipts


def test_a_beat_behind_nothing_is_confirmed_at_once() -> None:
    assert Receipts(lambda: None).beat()


def test_beats_wait_for_all_that_came_before_them_and_for_nothing_else() -> None:
    confirmed: list[str] = []
    receipts = Receipts(lambda: confirmed.append("beat"))
    first = receipts.hold()
    assert not receipts.beat()
    second = receipts.hold()
    assert not receipts.beat()

    second()
    assert confirmed == []
    first()
    assert confirmed == ["beat", "beat"]
    assert receipts.beat()


def test_a_later_message_does_not_hold_an_earlier_beat_back() -> None:
    confirmed: list[str] = []
    receipts = Receipts(lambda: confirmed.append("beat"))
    first = receipts.hold()
    receipts.beat()
    receipts.hold()

    first()

    assert confirmed == ["beat"]
