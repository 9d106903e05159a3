"""The pure parts: frames, handshake, outbox."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.errors import AuthenticationError, WireError
from slurm_elastic.wire import auth
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import MAX_MESSAGE_BYTES, Decoders, Opener, Sealer, encode
from slurm_elastic.wire.outbox import Outbox

KEY = b"k" * 32
TOKEN = b"t" * 32


@settings(max_examples=50, deadline=None)
@given(bodies=st.lists(st.binary(max_size=200), max_size=8), chunk=st.integers(1, 97))
def test_frames_arrive_whole_and_in_order_however_the_bytes_are_cut(bodies: list[bytes], chunk: int) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    sent = b"".join(sealer.seal(body) for body in bodies)
    got = [body for at in range(0, len(sent), chunk) for body in opener.feed(sent[at : at + chunk])]
    assert got == bodies


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_never_yields_a_message(at: int, flip: int) -> None:
    frame = bytearray(Sealer(KEY).seal(b'{"type":"beat"}'))
    frame[at % len(frame)] ^= flip
    opener = Opener(KEY)
    with contextlib.suppress(WireError):
        assert list(opener.feed(bytes(frame))) == []  # a longer length waits for bytes that never come


def test_a_replayed_a_skipped_and_a_foreign_frame_are_refused() -> None:
    sealer = Sealer(KEY)
    first, second = sealer.seal(b"1"), sealer.seal(b"2")
    for wrong in (first + first, second, Sealer(b"o" * 32).seal(b"1")):
        with pytest.raises(AuthenticationError):
            list(Opener(KEY).feed(wrong))


def test_good_frames_before_a_bad_one_are_given_first() -> None:
    got = []
    with pytest.raises(AuthenticationError):
        for body in Opener(KEY).feed(Sealer(KEY).seal(b"good") + Sealer(b"x").seal(b"bad")):
            got.append(body)  # noqa: PERF402 - the exception ends the loop
    assert got == [b"good"]


def test_too_long_messages_are_refused_at_both_ends() -> None:
    with pytest.raises(WireError, match="over the limit"):
        Sealer(KEY).seal(b"x" * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(WireError, match="over the limit"):
        list(Opener(KEY, limit=10).feed(Sealer(KEY).seal(b"x" * 11)))


def test_both_ends_get_the_same_keys_and_each_direction_its_own() -> None:
    client, server = auth.new_nonce(), auth.new_nonce()
    nonce = auth.read_greeting(auth.greet(client))
    proof, ours = auth.answer(TOKEN, client, auth.challenge(TOKEN, nonce, server))
    theirs = auth.accept(TOKEN, nonce, server, proof)
    assert ours == theirs
    assert ours.to_client != ours.to_server
    assert "to_server" not in repr(ours)


def test_a_wrong_token_is_refused_by_both_ends() -> None:
    client, server = auth.new_nonce(), auth.new_nonce()
    with pytest.raises(AuthenticationError):
        auth.answer(TOKEN, client, auth.challenge(b"other" * 7, client, server))
    proof, _ = auth.answer(b"other", client, auth.challenge(b"other", client, server))
    with pytest.raises(AuthenticationError):
        auth.accept(TOKEN, client, server, proof)


def test_a_proof_is_worth_nothing_on_another_connection_nor_sent_back() -> None:
    client, server = auth.new_nonce(), auth.new_nonce()
    challenge = auth.challenge(TOKEN, client, server)
    proof, _ = auth.answer(TOKEN, client, challenge)
    with pytest.raises(AuthenticationError):
        auth.accept(TOKEN, client, auth.new_nonce(), proof)
    with pytest.raises(AuthenticationError):
        auth.accept(TOKEN, client, server, challenge[auth.NONCE_BYTES :])


def test_nobody_may_say_what_belongs_to_the_supervisor() -> None:
    decoders = Decoders()
    release = encode(m.Release(epoch=9, reason="forged"))
    for decode in (decoders.hello, decoders.from_agent, decoders.from_worker):
        with pytest.raises(WireError):
            decode(release)
    assert decoders.from_supervisor(release) == m.Release(epoch=9, reason="forged")


def test_random_bodies_are_wire_errors_and_nothing_else() -> None:
    dice, decoders = random.Random(1), Decoders()
    whole = encode(m.Steps(generation=1, steps=(m.StepDone(step=1, world=2, samples=8, samples_sha256="a"),)))
    for _ in range(2000):
        cut = bytearray(whole[: dice.randrange(len(whole))])
        for _ in range(dice.randrange(4)):
            cut.insert(dice.randrange(len(cut) + 1), dice.randrange(256))
        for decode in (decoders.hello, decoders.from_agent, decoders.from_worker, decoders.from_supervisor):
            with pytest.raises(WireError):
                decode(bytes(cut))
    with pytest.raises(WireError):
        decoders.hello(b"[" * 100_000)


def test_the_outbox_sends_again_what_was_not_confirmed_and_nothing_else() -> None:
    box = Outbox(most_kept=5)
    for body in (b"1", b"2", b"3"):
        box.put(body, keep=True)
    box.put(b"lost", keep=False)
    assert [box.take(), box.take()] == [b"1", b"2"]
    mark = box.mark()
    assert [box.take(), box.take(), box.take()] == [b"3", b"lost", None]
    box.confirm(mark)
    box.rewind()
    assert [box.take(), box.take()] == [b"3", None]
    assert not box.wait_confirmed(0, lambda: None)
    box.confirm(box.mark())
    assert box.wait_confirmed(0, lambda: None)


def test_an_outbox_is_bounded() -> None:
    box = Outbox(most_kept=2)
    box.put(b"1", keep=True)
    box.take()
    box.put(b"2", keep=True)
    with pytest.raises(WireError, match="wait for the supervisor"):
        box.put(b"3", keep=True)
