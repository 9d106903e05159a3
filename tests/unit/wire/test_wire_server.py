"""The server against strangers, forgers, floods and slow readers. No command of theirs is ever accepted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import resource
import secrets
import socket
import weakref

import pytest
from wire_rig import Remembering, ServerThread, agent_hello, worker_hello

from slurm_elastic.wire import auth
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.frames import Sealer, encode
from slurm_elastic.wire.outbox import Outbox
from slurm_elastic.wire.server import Limits, WireServer
from slurm_elastic.wire.session import Session

TOKEN = b"t" * 32


async def send_and_see_it_closed(server: WireServer, data: bytes) -> None:
    """What a malicious peer sends before, or instead of, a proof."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(data)
    if data[:16] != auth.GREETING or len(data) < auth.GREETING_BYTES + auth.PROOF_BYTES:
        writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def send_authenticated(server: WireServer, frames: bytes, *, hello: bytes = b"") -> None:
    """What a broken or hostile peer sends after a right proof: `hello` well signed, then raw `frames`."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    nonce = auth.new_nonce()
    writer.write(auth.greet(nonce))
    proof, keys = auth.answer(TOKEN, nonce, await reader.readexactly(auth.CHALLENGE_BYTES))
    writer.write(proof + (Sealer(keys.to_server).seal(hello) if hello else b"") + frames)
    writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


def strange_bytes(dice: random.Random) -> bytes:
    kind = dice.randrange(6)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 300))
    if kind == 1:
        return auth.GREETING + dice.randbytes(32) + dice.randbytes(32)  # a guessed proof
    if kind == 2:
        return auth.greet(secrets.token_bytes(32)) + dice.randbytes(2000)  # too much
    if kind == 3:
        return encode(m.Release(epoch=99, reason="please"))
    if kind == 4:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    return auth.GREETING[: dice.randrange(16)]


def strange_frames(dice: random.Random) -> tuple[bytes, bytes]:
    """(hello, what follows) of a peer that knows the token and breaks the protocol."""
    good = encode(worker_hello())
    kind = dice.randrange(5)
    if kind == 0:
        return dice.randbytes(dice.randrange(1, 100)), b""
    if kind == 1:
        return encode(m.Kill(epoch=1, generation=1)), b""
    if kind == 2:
        return good, dice.randbytes(dice.randrange(44, 200))
    if kind == 3:
        return good, Sealer(b"guess" * 4).seal(encode(m.Leaving(generation=3, why="finished", step=9)))
    return b'{"type":"worker_hello","generation":"three"}', b""


@pytest.mark.parametrize("authenticated", [False, True])
def test_a_thousand_malformed_messages_are_refused_and_counted(authenticated: bool) -> None:
    handler, dice = Remembering(), random.Random(7)

    async def attack() -> WireServer:
        server = await WireServer.start("127.0.0.1", TOKEN, handler)
        for _ in range(20):
            if authenticated:
                attacks = [strange_frames(dice) for _ in range(50)]
                await asyncio.gather(*(send_authenticated(server, frames, hello=hi) for hi, frames in attacks))
            else:
                await asyncio.gather(*(send_and_see_it_closed(server, strange_bytes(dice)) for _ in range(50)))
        await server.close()
        return server

    server = asyncio.run(attack())
    assert server.refusals == {"127.0.0.1": 1000}
    assert handler.heard == []
    assert server.links == set()


def test_a_recorded_connection_cannot_be_played_again() -> None:
    handler = Remembering()

    async def replay() -> int:
        server = await WireServer.start("127.0.0.1", TOKEN, handler)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        nonce = auth.new_nonce()
        writer.write(auth.greet(nonce))
        proof, keys = auth.answer(TOKEN, nonce, await reader.readexactly(auth.CHALLENGE_BYTES))
        rest = proof + Sealer(keys.to_server).seal(encode(agent_hello()))
        writer.write(rest)
        await asyncio.wait_for(reader.readexactly(44), 5)
        await send_and_see_it_closed(server, auth.greet(nonce) + rest)
        writer.close()
        await server.close()
        return server.refusals["127.0.0.1"]

    assert asyncio.run(replay()) == 1
    assert len(handler.hellos) == 1


def test_a_silent_stranger_is_dropped_in_time() -> None:
    async def wait() -> WireServer:
        server = await WireServer.start("127.0.0.1", TOKEN, Remembering(), limits=Limits(stranger_s=0.1))
        reader, writer = await asyncio.open_connection(server.host, server.port)
        assert await asyncio.wait_for(reader.read(), 3) == b""
        writer.close()
        await server.close()
        return server

    assert asyncio.run(wait()).refusals == {"127.0.0.1": 1}


def test_strangers_cannot_take_all_connections() -> None:
    async def crowd() -> WireServer:
        server = await WireServer.start("127.0.0.1", TOKEN, Remembering(), limits=Limits(strangers=3))
        crowd = [await asyncio.open_connection(server.host, server.port) for _ in range(4)]
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(reader.read()) for reader, _ in crowd], timeout=3, return_when="FIRST_COMPLETED"
        )
        assert len(done) == 1
        for _, writer in crowd:
            writer.close()
        await server.close()
        return server

    assert asyncio.run(crowd()).refusals["127.0.0.1"] >= 1


def test_a_refused_hello_gets_its_reason_and_no_commands(rig: ServerThread) -> None:
    handler = Remembering()
    handler.verdict = m.Refused(reason="generation 3 is over")
    server = rig.start(handler)
    session = Session(server.host, server.port, rig.token, worker_hello, 0.1)
    assert session.verdict == handler.verdict
    session.close()
    assert server.refusals == {}
    assert server.links == set()


def test_the_hello_of_a_job_with_thousands_of_nodes_is_welcome(rig: ServerThread) -> None:
    handler = Remembering()
    server = rig.start(handler)
    nodes = tuple(f"node-with-a-long-name-{index:05d}" for index in range(4000))
    hello = m.AgentHello(job_id=7, role="base", nodes=nodes, incarnation="one")
    session = Session(server.host, server.port, rig.token, lambda address: hello, 0.1)
    assert isinstance(session.verdict, m.Welcome)
    session.close()
    assert handler.hellos == [hello]
    assert server.refusals == {}


def test_what_the_handler_sends_while_it_welcomes_comes_after_the_welcome(rig: ServerThread) -> None:
    handler = Remembering()
    handler.on_connected = lambda link: link.send(m.Fenced(generation=3, reason="over"))
    server = rig.start(handler)
    session = Session(server.host, server.port, rig.token, worker_hello, 0.1)
    wake, waker = socket.socketpair()
    got: list[m.AnyMessage] = []
    while not got:
        got += session.turn(Outbox(), wake, m.Beat)
    session.close()
    wake.close()
    waker.close()
    assert isinstance(session.verdict, m.Welcome)
    assert got == [m.Fenced(generation=3, reason="over")]


def test_a_peer_that_does_not_read_is_dropped(rig: ServerThread) -> None:
    handler = Remembering()
    server = rig.start(handler, limits=Limits(backlog_bytes=100_000))
    session = Session(server.host, server.port, rig.token, worker_hello, 60)
    large = m.Fenced(generation=1, reason="x" * 500_000)
    for _ in range(40):
        rig.soon(handler.links[0].send, large)
    assert "does not read" in handler.ends.get(timeout=5)
    session.close()
    assert server.links == set()


def test_a_thousand_peers_at_once_are_fine() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    handler = Remembering()

    async def connect(server: WireServer) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        nonce = auth.new_nonce()
        writer.write(auth.greet(nonce))
        proof, keys = auth.answer(TOKEN, nonce, await reader.readexactly(auth.CHALLENGE_BYTES))
        sealer = Sealer(keys.to_server)
        writer.write(proof + sealer.seal(encode(worker_hello())) + sealer.seal(encode(m.Beat(step=5))))
        await asyncio.wait_for(reader.readexactly(44), 20)
        return writer

    async def crowd() -> int:
        server = await WireServer.start("127.0.0.1", TOKEN, handler)
        writers = await asyncio.gather(*(connect(server) for _ in range(1000)))
        count = len(server.links)
        await server.close()
        for writer in writers:
            writer.close()
        return count

    assert asyncio.run(crowd()) == 1000
    assert handler.arrivals.qsize() == 1000


def test_a_link_that_ended_leaves_its_memory_without_the_collector() -> None:
    """Ten thousand workers reconnect at once: with a cycle in each the collector would hold the loop up."""

    async def come_and_go() -> None:
        handler = Remembering()
        server = await WireServer.start("127.0.0.1", TOKEN, handler)
        await send_authenticated(server, b"", hello=encode(worker_hello()))
        gone = weakref.ref(handler.links.pop())
        async with asyncio.timeout(10):
            while gone() is not None:
                await asyncio.sleep(0.01)
        await server.close()

    gc.disable()
    try:
        asyncio.run(come_and_go())
    finally:
        gc.enable()
