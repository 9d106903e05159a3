"""All devices of a movement have the same plan, or none lets go of anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import torch

from slurm_elastic.errors import MigrationError
from slurm_elastic.migrate.model import Plan
from slurm_elastic.migrate.transport import Message, Transport

Exchange = Callable[[bytes], Sequence[bytes]]  # everybody's bytes, given this process's


def plan_digest(plan: Plan) -> bytes:
    """SHA-256 of the plan's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(plan, order="deterministic")).digest()


def agree(word: bytes, exchange: Exchange) -> None:
    """Collective. Raises MigrationError unless all say `word`."""
    others = {bytes(other) for other in exchange(word)} - {word}
    if others:
        raise MigrationError("workers made different plans of one movement", fix="report this: the planner is at fault")


def exchange_over(transport: Transport, me: str, devices: Sequence[str], timeout_s: float) -> Exchange:
    """An exchange among `devices` (the same on all) through the transport: the first one collects and hands out.

    All words are as long as this process's.
    """

    def exchange(word: bytes) -> Sequence[bytes]:
        hub, rest = devices[0], devices[1:]
        mine = torch.frombuffer(bytearray(word), dtype=torch.uint8)
        words = mine.expand(len(devices), -1).clone()
        if me == hub:
            incoming = [Message(peer, [row]) for peer, row in zip(rest, words[1:], strict=True)]
            transport.post([], incoming).wait(timeout_s)
            transport.post([Message(peer, [words]) for peer in rest], []).wait(timeout_s)
        else:
            transport.post([Message(hub, [mine])], []).wait(timeout_s)
            transport.post([], [Message(hub, [words])]).wait(timeout_s)
        return [bytes(row.numpy()) for row in words]

    return exchange
