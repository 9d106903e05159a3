"""From one generation into the next without leaving the process.

All who are concerned (survivors, newcomers, those who depart) meet at the store of the new first worker, say what
they hold, and plan alike. Whoever has a seat builds the training for the new world; then the bytes that somebody lacks
move, and nothing else. Until the end everyone keeps a state that is complete and consistent, or knows exactly which
parts of it are there: a further order finds that as it is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from slurm_elastic.errors import RegroupError, StateLost, UserMistake
from slurm_elastic.migrate.capture_layout import Described, Known, joined_aliases, known, renamed
from slurm_elastic.migrate.execute import Migration, Options
from slurm_elastic.migrate.model import Box, Plan
from slurm_elastic.migrate.parts import Parts, construct
from slurm_elastic.migrate.parts_fill import fill
from slurm_elastic.migrate.parts_wanted import unwanted, wanted
from slurm_elastic.training.bridge import Bridge
from slurm_elastic.training.environment import Ranks
from slurm_elastic.training.groups import Sockets
from slurm_elastic.training.meeting import Meeting, Store
from slurm_elastic.training.planning import Point, Said, device_name, make_plan
from slurm_elastic.training.seating import ranks_in
from slurm_elastic.wire import messages as m

log = logging.getLogger(__name__)

Key = tuple[str, Box]


@dataclass(slots=True)
class Holding:
    """What this worker brings. `described` None: nothing (it is new, or was torn in the middle of an optimizer step).

    A regroup takes `local` over: nobody else should refer to these tensors. It is kept right whatever happens.
    """

    point: Point = field(default_factory=Point)
    described: Described | None = None
    local: dict[Key, torch.Tensor] = field(default_factory=dict)

    def say(self, shared: str) -> bytes:
        holds: dict[str, list[Box]] = {}
        for name, box in self.local:
            holds.setdefault(name, []).append(box)
        boxes = {name: tuple(each) for name, each in holds.items()}
        return msgspec.msgpack.encode(Said(self.point, self.described, boxes, shared))

    def drop(self) -> None:
        self.described = None
        self.local.clear()


@dataclass(slots=True)
class Surroundings:
    """What a regroup needs of the process that it happens in. `enter`: makes the groups of the new generation, for the
    ranks given, and returns the world that `build` gets; `leave`: ends the old ones, safe to repeat."""

    seat: m.Seat
    device: torch.device
    timeout_s: float
    store_at: Callable[[m.Regroup], Store]
    leave: Callable[[], None]
    enter: Callable[[Store, Ranks], Any]
    build: Callable[[Any], Parts]
    called_off: Callable[[], str]
    sockets: Sockets  # cut from another thread when a peer is lost


@dataclass(frozen=True, slots=True)
class Arrival:
    """In the new generation. `parts` and `ranks` None: this worker departs, and has handed over."""

    point: Point
    parts: Parts | None
    ranks: Ranks | None
    received_bytes: int
    sent_bytes: int
    moved_s: float


def regroup(order: m.Regroup, around: Surroundings, holding: Holding) -> Arrival:
    """Collective over all that `order` names.

    Raises RegroupError, MigrationError, RuntimeError of torch's (a peer was lost), UserMistake (`build` does not fit).
    """
    bridge = Bridge(device_name(around.seat), around.device)
    with contextlib.closing(bridge):
        return _Crossing(order, around, holding, bridge).run()


class Stopwatch:
    """What took how long, for the log: `note` at the end of each part."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._since = time.monotonic()

    def note(self, part: str) -> None:
        now = time.monotonic()
        self._parts.append(f"{part} {now - self._since:.3f} s")
        self._since = now

    def __str__(self) -> str:
        return ", ".join(self._parts)


class _Crossing:
    """One attempt to get into the generation of `order`."""

    def __init__(self, order: m.Regroup, around: Surroundings, holding: Holding, bridge: Bridge) -> None:
        self._order = order
        self._around = around
        self._holding = holding
        self._bridge = bridge
        self._everyone = (*order.seats, *order.departing)
        self._ranks = ranks_in(order, around.seat)
        self._store = around.store_at(order)
        self._meeting = Meeting(
            self._store,
            self._everyone.index(around.seat),
            len(self._everyone),
            timeout_s=around.timeout_s,
            called_off=around.called_off,
        )

    def run(self) -> Arrival:
        took = Stopwatch()
        told = self._meeting.exchange("state", self._holding.say(self._bridge.address))
        said = [msgspec.msgpack.decode(one, type=Said) for one in told]
        point, old = newest(said)
        if self._holding.point.step != point.step:
            self._holding.drop()  # of no use to anybody
        took.note("meet")
        self._around.leave()
        parts, mine = self._build(old)
        took.note("build")
        wishes = self._wishes(mine)
        refuse_to_forget(old, wishes)
        took.note("wait for all builds")
        aliases = joined_aliases([old.aliases, *(wish.aliases for wish in wishes)])
        plan, tensors = make_plan(self._order, said, point, old, wishes, aliases)
        if plan.status != "ok":
            raise StateLost(lost_words(plan), fix="the run goes on from its last checkpoint")
        took.note("plan")
        transport = self._open(plan, said)
        local = {(aliases.get(name, name), box): tensor for (name, box), tensor in self._holding.local.items()}
        self._holding.local.clear()
        mine = None if mine is None else renamed(mine, aliases)
        options = Options(self._around.timeout_s, device=self._around.device, exchange=self._exchange_plan)
        new = [(name, part.box) for name in mine.tensors for part in mine.parts(name)] if mine is not None else []
        movement = Migration(plan, device_name(self._around.seat), local, new, tensors, transport, options)
        moved_s = self._move(movement, point, mine, old, said)
        self._all_through(point)
        took.note("move")
        if parts is not None and mine is not None:
            under = msgspec.structs.replace(old, tensors=tensors, aliases=aliases)
            fill(parts, mine, under, movement.boxes, self._around.device)
        self._holding.drop()
        took.note("fill")
        log.info("regroup generation=%d: %s", self._order.generation, took)
        moved = movement.moved
        return Arrival(point, parts, self._ranks, moved.received.total(), moved.sent.total(), moved_s)

    def _build(self, old: Known) -> tuple[Parts, Described] | tuple[None, None]:
        """The training for the new world, on the meta device, and what this worker must hold for it."""
        if self._ranks is None:
            return None, None
        with self._around.sockets.noting():
            parts = construct(self._around.build, self._around.enter(self._store, self._ranks))
        return parts, wanted(parts, self._ranks.global_rank, old)

    def _wishes(self, mine: Described | None) -> list[Described]:
        """What each rank of the new generation must hold."""
        told = self._meeting.exchange("wanted", msgspec.msgpack.encode(mine))
        return [msgspec.msgpack.decode(one, type=Described) for one in told[: len(self._order.seats)]]

    def _exchange_plan(self, word: bytes) -> list[bytes]:
        return list(self._meeting.exchange("plan", word))

    def _open(self, plan: Plan, said: list[Said]) -> Any:
        addresses = {device_name(seat): one.shared for seat, one in zip(self._everyone, said, strict=True)}
        return self._bridge.open(plan, addresses, self._store, self._around.timeout_s, self._around.sockets)

    def _move(self, movement: Migration, point: Point, mine: Described | None, old: Known, said: list[Said]) -> float:
        """Seconds it took. What is here afterwards, moved or not, is what this worker brings to a further order."""
        began = time.monotonic()
        names = self._holding.described or next(one.described for one in said if one.described is not None)
        try:
            movement.run()
        finally:
            self._holding.point = point
            self._holding.local = dict(movement.holdings())
            self._holding.described = mine if movement.has_new and mine is not None else names
        return time.monotonic() - began

    def _all_through(self, point: Point) -> None:
        """Everybody has what it needs, and means the same step."""
        if len(set(self._meeting.exchange("done", msgspec.msgpack.encode(point)))) != 1:
            raise RegroupError("the workers of the new generation do not agree where the training stands")


def refuse_to_forget(old: Known, wishes: list[Described]) -> None:
    """State that no rank of the new generation asks for would be lost without a word. Raises UserMistake, on all."""
    forgotten = unwanted(old, wishes)
    if forgotten:
        raise UserMistake(
            f"build(world) makes a model without {forgotten[0]}, which the running training has",
            fix="let build(world) make the same model at every world size",
        )


def newest(said: list[Said]) -> tuple[Point, Known]:
    """The highest step that anybody completed, and what there is of its state."""
    holders = [one for one in said if one.described is not None]
    if not holders:
        raise StateLost("no worker that is left holds any state", fix="the run goes on from its last checkpoint")
    point = max((one.point for one in holders), key=lambda point: point.step)
    return point, known(one.described for one in holders if one.point.step == point.step and one.described is not None)


def lost_words(plan: Plan) -> str:
    if plan.status == "infeasible":
        return "there are fewer workers than ranks"
    names = sorted({piece.tensor for piece in plan.lost})
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"no worker that is left holds all of {shown}"
