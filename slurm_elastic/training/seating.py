"""Which generation this process is in, as which rank, and into which one it was told to go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_elastic.training.environment import Ranks
from slurm_elastic.wire import messages as m

STAGE_STANDBY, STAGE_TRAINING = "standby", "training"


@dataclass(frozen=True, slots=True)
class Seated:
    """Where a worker is now. `ranks` are provisional while it stands by."""

    generation: int
    ranks: Ranks
    stage: str = STAGE_TRAINING


class Seating:
    """Written by the thread that listens (`told`) and by the training thread (`sit`); read by both.

    `launch`: the generation this process was started for.
    """

    def __init__(self, launch: int, node: str, now: Seated) -> None:
        self.seat = m.Seat(launch=launch, node=node, local_rank=now.ranks.local_rank)
        self.now = now
        self.store_port = 0  # of the store that this process keeps; 0: it cannot regroup in place
        self._order: m.Regroup | None = None
        self._abandoned = False
        self._changed = threading.Condition()
        self._on_loss: Callable[[], None] = lambda: None

    @property
    def order(self) -> m.Regroup | None:
        """The newest generation to go into; None when there is none newer than `now`."""
        order = self._order
        return order if order is not None and order.generation > self.now.generation else None

    def frees(self, on_loss: Callable[[], None]) -> None:
        """`on_loss` is called from the listening thread when a peer was lost: the training thread may be stuck."""
        self._on_loss = on_loss

    def told(self, order: m.Regroup) -> None:
        """An order came in. A repeat, or an older one, is ignored."""
        with self._changed:
            newest = max(self.now.generation, self._order.generation if self._order else 0)
            if order.generation <= newest:
                return
            self._order = order
            self._changed.notify_all()
        if not order.planned:
            self._on_loss()

    def abandon(self) -> None:
        """There is no supervisor any more: no order will come."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def wait(self, at_least: int, timeout_s: float) -> m.Regroup | None:
        """The newest order when its generation is `at_least` that; None when it does not come (in time)."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (order := self.order) is None or order.generation < at_least:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._abandoned:
                    return None
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            return order

    def is_newer_than(self, generation: int) -> str:
        """Why a meeting of `generation` is called off, "" when it is not."""
        order = self._order
        if order is not None and order.generation > generation:
            return f"generation {order.generation} comes before generation {generation} has begun: {order.reason}"
        return ""

    def sit(self, generation: int, ranks: Ranks) -> None:
        """This worker has its place and its state in `generation`."""
        with self._changed:
            self.now = Seated(generation, ranks)


def ranks_in(order: m.Regroup, seat: m.Seat) -> Ranks | None:
    """The ranks of a seat in the generation of `order`; None when it departs, or is not in it."""
    if seat not in order.seats:
        return None
    here = [other for other in order.seats if other.node == seat.node]
    return Ranks(
        global_rank=order.seats.index(seat),
        world_size=len(order.seats),
        local_rank=here.index(seat),
        local_world_size=len(here),
    )
