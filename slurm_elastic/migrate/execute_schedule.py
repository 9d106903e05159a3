"""One device's way through a plan: which messages it sends and receives in each step. Pure, no tensors.

A plan pairs the k-th box sent from a to b with the k-th that b receives from a, and the two may cut their programs
into steps differently. A message is a run of boxes that neither side has cut: both sides find the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from slurm_elastic.errors import MigrationError
from slurm_elastic.migrate.model import Piece, Plan


class Carried(NamedTuple):
    """The boxes of one message, in order, and the device at the other end."""

    peer: str
    pieces: tuple[Piece, ...]


class Stop(NamedTuple):
    """One step of one device. `send` and `recv` are posted together, after `refer` and before `release`."""

    refer: tuple[Piece, ...]
    send: tuple[Carried, ...]
    recv: tuple[Carried, ...]
    release: tuple[Piece, ...]


class _Placed(NamedTuple):
    step: int
    piece: Piece


def schedule(plan: Plan, device: str) -> tuple[Stop, ...]:
    """The stops of `device`; none if the plan has no program for it.

    Raises MigrationError where the two ends of a channel do not fit: nothing has moved then.
    """
    program = plan.programs.get(device, ())
    receivers = {sending.to for step in program for sending in step.send}
    senders = {receiving.source for step in program for receiving in step.recv}
    sends: dict[int, list[Carried]] = {}
    receives: dict[int, list[Carried]] = {}
    for peer in sorted(receivers):
        for sent_in, _, pieces in _messages(plan, device, peer):
            sends.setdefault(sent_in, []).append(Carried(peer, pieces))
    for peer in sorted(senders):
        for _, received_in, pieces in _messages(plan, peer, device):
            receives.setdefault(received_in, []).append(Carried(peer, pieces))
    return tuple(
        Stop(step.refer, tuple(sends.get(number, ())), tuple(receives.get(number, ())), step.release)
        for number, step in enumerate(program)
    )


def participants(plan: Plan) -> tuple[str, ...]:
    """Every device that does something or ends with something, in a fixed order."""
    return tuple(sorted({*plan.programs, *plan.host}))


def _messages(plan: Plan, source: str, to: str) -> Iterator[tuple[int, int, tuple[Piece, ...]]]:
    """(step of the sender, step of the receiver, boxes) of everything on one channel, in order."""
    sent, received = _sent(plan, source, to), _received(plan, source, to)
    for one, other in zip(sent, received, strict=False):
        if one.piece != other.piece:
            raise _unfit(source, to, f"sends {_named(one.piece)} where {_named(other.piece)} is awaited", one.piece)
    if len(sent) != len(received):
        longer = max(sent, received, key=len)[min(len(sent), len(received))].piece
        raise _unfit(source, to, f"sends {len(sent)} boxes where {len(received)} are awaited", longer)
    pairs = zip(sent, received, strict=True)
    for (first, second), run in groupby(pairs, key=lambda pair: (pair[0].step, pair[1].step)):
        yield first, second, tuple(pair[0].piece for pair in run)


def _sent(plan: Plan, source: str, to: str) -> Sequence[_Placed]:
    return [
        _Placed(number, Piece(one.tensor, one.offset, one.size))
        for number, step in enumerate(plan.programs.get(source, ()))
        for one in step.send
        if one.to == to
    ]


def _received(plan: Plan, source: str, to: str) -> Sequence[_Placed]:
    return [
        _Placed(number, Piece(one.tensor, one.offset, one.size))
        for number, step in enumerate(plan.programs.get(to, ()))
        for one in step.recv
        if one.source == source
    ]


def _named(piece: Piece) -> str:
    return f"{piece.tensor} {list(piece.offset)}+{list(piece.size)}"


def _unfit(source: str, to: str, how: str, piece: Piece) -> MigrationError:
    return MigrationError(f"the plan does not fit together: {source} {how} by {to}", peer=to, tensors=(piece.tensor,))
