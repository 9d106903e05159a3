"""Both ends together: a channel and a server that goes away and comes back."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from wire_rig import Remembering, ServerThread, agent_hello, worker_hello

from slurm_elastic.errors import WireError
from slurm_elastic.rundir import replace_json
from slurm_elastic.wire import messages as m
from slurm_elastic.wire import session as session_module
from slurm_elastic.wire.channel import Channel, Connected, Disconnected, GaveUp, RefusedBy

T = TypeVar("T")


def channel_to(rig: ServerThread, *, give_up_after_s: float = 30.0, hello: Callable = worker_hello) -> Channel:
    return Channel(rig.run_dir, hello, heartbeat_s=0.1, give_up_after_s=give_up_after_s)


def next_of(inbox: queue.SimpleQueue, kind: type[T]) -> T:
    while True:
        got = inbox.get(timeout=8)
        if isinstance(got, kind):
            return got


def leaving(step: int) -> m.Leaving:
    return m.Leaving(generation=3, why="drained", step=step)


def test_hello_welcome_messages_and_orders_pass(rig: ServerThread) -> None:
    handler = Remembering()
    rig.start(handler)
    channel = channel_to(rig, hello=lambda address: worker_hello(address))
    channel.start()
    assert next_of(channel.inbox, Connected).welcome == m.Welcome(epoch=1, generation=3, heartbeat_s=0.1)
    assert channel.local_address == "127.0.0.1"
    assert handler.hellos[0] == worker_hello("127.0.0.1")
    channel.send(leaving(4))
    assert channel.flush(5)
    assert handler.heard == [leaving(4)]
    rig.soon(handler.links[0].send, m.Fenced(generation=3, reason="over"))
    assert next_of(channel.inbox, m.Fenced).reason == "over"
    channel.close()
    # (a reset, where an answer to a beat was on its way)
    assert handler.ends.get(timeout=5).startswith(("the peer closed the connection", "connection lost"))


def test_beats_carry_the_step_and_keep_the_connection(rig: ServerThread) -> None:
    handler = Remembering()
    rig.start(handler)
    channel = Channel(rig.run_dir, worker_hello, heartbeat_s=0.05, give_up_after_s=9, beat=lambda: m.Beat(step=42))
    channel.start()
    assert next_of(handler.arrivals, m.Beat) == m.Beat(step=42)
    channel.close()


def test_messages_wait_for_a_supervisor_and_arrive_once_in_order(rig: ServerThread) -> None:
    channel = channel_to(rig)
    channel.start()
    for step in range(500):
        channel.send(leaving(step))
    channel.send(leaving(-1), keep=False)
    assert not channel.flush(0.05)
    handler = Remembering()
    rig.start(handler)
    assert channel.flush(8)
    assert handler.heard == [leaving(step) for step in range(500)]
    channel.close()


def test_a_restarted_supervisor_of_a_higher_epoch_is_found_and_hears_everything(rig: ServerThread) -> None:
    first = Remembering(epoch=1)
    rig.start(first, epoch=1)
    channel = channel_to(rig)
    channel.start()
    next_of(channel.inbox, Connected)
    for step in range(100):
        channel.send(leaving(step))
    assert channel.flush(5)
    rig.stop_server()
    next_of(channel.inbox, Disconnected)
    for step in range(100, 200):
        channel.send(leaving(step))
    second = Remembering(epoch=2)
    rig.start(second, epoch=2)
    assert next_of(channel.inbox, Connected).welcome.epoch == 2
    assert channel.flush(5)
    assert first.heard + second.heard == [leaving(step) for step in range(200)]
    assert len(second.hellos) == 1
    channel.close()


def test_what_was_sent_into_a_dying_connection_is_sent_again(rig: ServerThread) -> None:
    class Deaf(Remembering):
        def received(self, link, message):
            if isinstance(message, m.Leaving):
                link.close("killed before it could note this")

    rig.start(Deaf(), epoch=1)
    channel = channel_to(rig)
    channel.start()
    channel.send(leaving(1))
    next_of(channel.inbox, Disconnected)
    rig.stop_server()
    second = Remembering(epoch=2)
    rig.start(second, epoch=2)
    assert channel.flush(8)
    assert second.heard == [leaving(1)]
    channel.close()


def test_a_supervisor_of_an_older_epoch_is_refused(rig: ServerThread) -> None:
    handler = Remembering(epoch=5)
    rig.start(handler, epoch=5)
    channel = channel_to(rig)
    channel.start()
    next_of(channel.inbox, Connected)
    rig.soon(handler.links[0].send, m.Kill(epoch=4, generation=3, reason="of the past"))
    rig.soon(handler.links[0].send, m.Kill(epoch=5, generation=3, reason="of the present"))
    assert next_of(channel.inbox, m.Kill).reason == "of the present"
    rig.stop_server()
    next_of(channel.inbox, Disconnected)
    zombie = Remembering(epoch=4)
    zombie_server = rig.start(zombie, epoch=4)
    channel.send(leaving(1))
    assert not channel.flush(0.3)
    # The zombie's port under a newer epoch's name: it is found out by its Welcome.
    replace_json(rig.run_dir.endpoint, {"epoch": 6, "host": zombie_server.host, "port": zombie_server.port})
    assert not channel.flush(1.2)
    assert zombie.heard == []
    channel.close()


def test_without_a_supervisor_the_channel_gives_up(rig: ServerThread) -> None:
    channel = channel_to(rig, give_up_after_s=0.2)
    channel.start()
    assert "no supervisor for" in next_of(channel.inbox, GaveUp).reason
    channel.send(leaving(1))  # changes nothing, breaks nothing
    channel.close()


def test_a_listener_that_does_not_know_the_token_is_not_believed(rig: ServerThread) -> None:
    handler = Remembering()
    server = rig.start(handler)
    rig.run_dir.token.write_text("ab" * 32)
    channel = channel_to(rig, give_up_after_s=0.1)
    channel.start()
    assert "does not know this run's token" in next_of(channel.inbox, GaveUp).reason
    channel.close()
    assert handler.hellos == []
    assert server.refusals["127.0.0.1"] >= 1


def test_a_refusal_is_final(rig: ServerThread) -> None:
    handler = Remembering()
    handler.verdict = m.Refused(reason="generation 2 is over")
    rig.start(handler)
    channel = channel_to(rig)
    channel.start()
    assert next_of(channel.inbox, RefusedBy).reason == "generation 2 is over"
    channel.close()
    assert len(handler.hellos) == 1


def test_a_silent_supervisor_counts_as_lost(rig: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_SILENT_EXTRA_S", 0.2)
    held, freed = threading.Event(), threading.Event()

    class Frozen(Remembering):
        def received(self, link, message):
            held.set()
            freed.wait(5)

    rig.start(Frozen())
    channel = channel_to(rig)
    channel.start()
    assert held.wait(5)
    try:
        assert "silent" in next_of(channel.inbox, Disconnected).reason
    finally:
        freed.set()
    channel.close()


def test_a_process_that_was_stopped_believes_nothing_it_finds_in_its_socket(
    rig: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_SILENT_EXTRA_S", 0.2)
    handler = Remembering()
    rig.start(handler)
    stopped, go_on = threading.Event(), threading.Event()

    def beat() -> m.Beat:
        if not go_on.is_set():
            stopped.set()
            go_on.wait(5)
        return m.Beat()

    channel = Channel(rig.run_dir, worker_hello, heartbeat_s=0.1, give_up_after_s=9, beat=beat)
    channel.start()
    assert stopped.wait(5)
    rig.soon(handler.links[0].send, m.Fenced(generation=3, reason="meant for the old world"))
    time.sleep(0.8)
    go_on.set()
    assert "did not run" in next_of(channel.inbox, Disconnected).reason
    next_of(channel.inbox, Connected)
    assert channel.inbox.empty()
    channel.close()


def test_a_forked_child_does_not_hold_the_connection(rig: ServerThread) -> None:
    handler = Remembering()
    rig.start(handler)
    channel = channel_to(rig, hello=agent_hello)
    channel.start()
    next_of(channel.inbox, Connected)
    go, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(go, 1)
        os._exit(0)
    channel.close()
    assert handler.ends.get(timeout=5)  # although the child lives
    os.write(told, b"x")
    os.waitpid(child, 0)
    os.close(go)
    os.close(told)


def test_a_message_too_long_is_the_senders_error(rig: ServerThread) -> None:
    with pytest.raises(WireError, match="over the limit"):
        channel_to(rig).send(m.Warned(text="x" * (2 << 20)))


def test_what_was_not_safe_with_a_supervisor_that_died_is_sent_again(rig: ServerThread) -> None:
    handler = Remembering()
    handler.on_received = lambda link: link.hold_receipt()  # its disk hangs
    rig.start(handler)
    channel = channel_to(rig)
    channel.start()
    channel.send(leaving(4))
    assert not channel.flush(1.0)
    assert handler.heard == [leaving(4)]
    assert channel.is_connected  # the disk hangs, not the supervisor
    rig.stop_server()

    successor = Remembering(epoch=2)
    rig.start(successor, epoch=2)

    assert channel.flush(8)
    assert successor.heard == [leaving(4)]
    channel.close()


def test_a_message_is_confirmed_as_soon_as_it_is_safe(rig: ServerThread) -> None:
    handler = Remembering()
    receipts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    handler.on_received = lambda link: receipts.put(link.hold_receipt())
    rig.start(handler)
    channel = channel_to(rig)
    channel.start()
    channel.send(leaving(4))
    assert not channel.flush(0.3)
    rig.soon(receipts.get(timeout=5))

    assert channel.flush(5)
    channel.close()
