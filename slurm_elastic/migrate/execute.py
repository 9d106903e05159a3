"""Carries out one device's part of a plan.

    movement = Migration(plan, me, old, new, tensors, transport)
    movement.run()                      # or MigrationError: then ask has_old, has_new, holdings()
    boxes = movement.boxes              # the new state
    movement.commit()                   # with keep_old: lets go of the old one

Invariant: at every moment each element of `holdings()` is what the training state has there; what is in flight or not
verified is not among them. So after a failure at any point a device has its old state whole, its new state whole, or
a layout of its own from which (with those of the others) the next plan starts.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from slurm_elastic.errors import MigrationError, PeerLost
from slurm_elastic.migrate.checksum import SEAL_BYTES, Checksum
from slurm_elastic.migrate.execute_agreement import Exchange, agree, exchange_over, plan_digest
from slurm_elastic.migrate.execute_schedule import Carried, Stop, participants, schedule
from slurm_elastic.migrate.model import Box, Piece, Plan, Tensor
from slurm_elastic.migrate.store import Boxes, Key, Store
from slurm_elastic.migrate.store_boxes import inside
from slurm_elastic.migrate.store_memory import fresh_on
from slurm_elastic.migrate.transport import Message, Transport
from slurm_elastic.migrate.transport_parts import bits, total_bytes


class Phase(Enum):
    """What has just happened in a step (`AGREED` and `DONE`: in the whole movement)."""

    AGREED = "agreed"
    POSTED = "posted"
    ARRIVED = "arrived"
    VERIFIED = "verified"
    RELEASED = "released"
    DONE = "done"


Watch = Callable[[Phase, int], None]


def _nobody(_phase: Phase, _step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """`timeout_s`: for one step, peers included. `keep_old`: release nothing before `commit`. `exchange`: all-gather of
    bytes among the plan's devices, if there is a better one than over the transport. `watch`: is told every phase.
    """

    timeout_s: float = 60.0
    keep_old: bool = False
    device: torch.device | str = "cpu"
    exchange: Exchange | None = None
    watch: Watch = _nobody


@dataclass(slots=True)
class Moved:
    """Bytes of state by peer, and what the transport carried beside them (checksums)."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    sealing_bytes: int = 0  # sent and received


class _Awaited(NamedTuple):
    """A message to come: where its parts are put, and what is still to be spread from there over several boxes."""

    carried: Carried
    seed: int
    parts: list[torch.Tensor]
    seal: torch.Tensor
    spread: list[tuple[Piece, torch.Tensor, list[tuple[Box, torch.Tensor]]]]


class Migration:
    """`old`: the boxes of this device, taken over and emptied as they are released; nobody else should refer to their
    tensors. `new`: the boxes it has afterwards (none on a leaving device). `tensors`: all that are moved, by name.
    Used once. After an error the transport is closed, which tells the peers.
    """

    def __init__(
        self,
        plan: Plan,
        me: str,
        old: Boxes,
        new: Iterable[Key],
        tensors: Mapping[str, Tensor],
        transport: Transport,
        options: Options | None = None,
    ) -> None:
        self._options = options or Options()
        self._plan = plan
        self._me = me
        self._transport = transport
        self._stops = schedule(plan, me)
        self._store = Store(old, new, tensors, fresh_on(self._options.device))
        self._checksum = Checksum(torch.device(self._options.device))
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._unverified: list[_Awaited] = []
        self._ahead: dict[int, torch.Tensor] = {}  # seals made early, by place of the message in its step
        self.moved = Moved()

    @property
    def boxes(self) -> dict[Key, torch.Tensor]:
        """The new boxes; whole once `run` has returned."""
        return self._store.new

    @property
    def has_old(self) -> bool:
        """All old boxes are whole."""
        return self._store.old_is_whole

    @property
    def has_new(self) -> bool:
        """All new boxes are whole."""
        return not self._store.missing()

    def holdings(self) -> dict[Key, torch.Tensor]:
        """All that is valid on this device, in disjoint boxes: the `old` of a next movement."""
        return self._store.holdings()

    def commit(self) -> None:
        """Let go of the old boxes."""
        self._store.old.clear()

    def run(self) -> None:
        """Move. Raises MigrationError (PeerLost, MigrationCancelled)."""
        try:
            self._agree(plan_digest(self._plan))
            self._options.watch(Phase.AGREED, 0)
            self._store.add_empty()
            for number, stop in enumerate(self._stops):
                self._step(number, stop)
            self._verify(len(self._stops))
            if missing := self._store.missing():
                raise MigrationError(f"the plan leaves {self._me} without some of its boxes", tensors=_names(missing))
            if self._options.keep_old:
                self._agree(plan_digest(self._plan))  # everybody is through
            self._options.watch(Phase.DONE, len(self._stops))
        except MigrationError:
            self._transport.abort()
            self._transport.close()
            with contextlib.suppress(MigrationError):
                self._verify(0)
            raise

    def _agree(self, word: bytes) -> None:
        devices = participants(self._plan)
        timeout_s = self._options.timeout_s
        agree(word, self._options.exchange or exchange_over(self._transport, self._me, devices, timeout_s))

    def _step(self, number: int, stop: Stop) -> None:
        """Verifying the step before and summing the next one is done while this one's bytes are on their way."""
        if self._unverified and not self._can_send(stop):
            self._verify(number - 1)  # it forwards what has just come
        for piece in stop.refer:
            self._store.refer(piece)
        sends = self._outgoing(stop)
        awaited = [self._awaited(carried) for carried in stop.recv]
        receives = [Message(one.carried.peer, [*one.parts, one.seal]) for one in awaited]
        transfer = self._transport.post(sends, receives)
        self._options.watch(Phase.POSTED, number)
        self._verify(number - 1)
        self._seal_ahead(number + 1)
        try:
            transfer.wait(self._options.timeout_s)
        except PeerLost as lost:
            lost.tensors = _names(p for one in (*stop.send, *stop.recv) if one.peer == lost.peer for p in one.pieces)
            raise
        del sends, receives, transfer
        self._options.watch(Phase.ARRIVED, number)
        self._unverified = awaited
        if stop.release and not self._options.keep_old:
            for piece in stop.release:
                self._store.release(piece)
            self._options.watch(Phase.RELEASED, number)

    def _can_send(self, stop: Stop) -> bool:
        return all(self._store.has(piece) for carried in stop.send for piece in carried.pieces)

    def _outgoing(self, stop: Stop) -> list[Message]:
        messages = []
        for place, carried in enumerate(stop.send):
            parts = [bits(self._store.read(piece)) for piece in carried.pieces]
            seed = self._seed(self._me, carried.peer)
            seal = self._ahead.get(place)
            messages.append(Message(carried.peer, [*parts, self._checksum.seal(parts, seed) if seal is None else seal]))
            self.moved.sent[carried.peer] += total_bytes(parts)
            self.moved.sealing_bytes += SEAL_BYTES
        self._ahead = {}
        return messages

    def _seal_ahead(self, number: int) -> None:
        """Sum what the next step sends, if it is here by now. Keeps no view: its box may be released meanwhile."""
        stop = self._stops[number] if number < len(self._stops) else None
        if stop is None or not self._can_send(stop):
            return
        before = self._numbers.copy()
        for place, carried in enumerate(stop.send):
            parts = [bits(self._store.read(piece)) for piece in carried.pieces]
            self._ahead[place] = self._checksum.seal(parts, self._seed(self._me, carried.peer))
        self._numbers = before

    def _awaited(self, carried: Carried) -> _Awaited:
        parts, spread = [], []
        for piece in carried.pieces:
            places = self._store.destination(piece)
            values = places[0][1] if len(places) == 1 else self._store.allocate(piece)
            if len(places) > 1:
                spread.append((piece, values, places))
            parts.append(bits(values))
        seal = torch.zeros(SEAL_BYTES // 8, dtype=torch.int64, device=self._options.device)
        self.moved.received[carried.peer] += total_bytes(parts)
        self.moved.sealing_bytes += SEAL_BYTES
        return _Awaited(carried, self._seed(carried.peer, self._me), parts, seal, spread)

    def _seed(self, source: str, to: str) -> int:
        """Ties a checksum to its message: the right bytes in the wrong message do not pass."""
        self._numbers[source, to] += 1
        return zlib.crc32(f"{source}>{to}:{self._numbers[source, to]}".encode())

    def _verify(self, number: int) -> None:
        """What has arrived counts from now on."""
        arrived, self._unverified = self._unverified, []
        for carried, seed, parts, seal, spread in arrived:
            if not self._checksum.fits(seal, parts, seed):
                problem = f"what came from {carried.peer} is not what was sent: its checksum does not fit"
                raise MigrationError(problem, peer=carried.peer, tensors=_names(carried.pieces))
            for piece, values, places in spread:
                for common, there in places:
                    bits(there).copy_(bits(values[inside(common, piece.box)]))
            for piece in carried.pieces:
                self._store.mark_written(piece)
        if arrived:
            self._options.watch(Phase.VERIFIED, number)


def _names(pieces: Iterable[Piece]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece.tensor for piece in pieces))
