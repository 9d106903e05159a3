"""From "some rank was told to stop" to one answer for all: stop how, by when, and does a save still fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_elastic.training.consensus import Agreement
from slurm_elastic.training.control import Order

ELSEWHERE = "another worker was told to stop"


@dataclass(frozen=True, slots=True)
class Stop:
    """Equal on all ranks, but for `reason`. `left_s`: until the deadline when agreed on; inf without one."""

    reason: str
    why: str
    save: bool
    left_s: float
    need_s: float  # what a save is expected to take, with reserve; 0: not known
    regroup: int = 0  # the generation to go into in place; 0: stop
    may_stay: bool = False

    @property
    def fits(self) -> bool:
        """Whether to begin a save. When nothing was measured it is worth the try: a half save is never published."""
        return self.need_s == 0 or self.left_s >= self.need_s


def agree_on_stop(agreement: Agreement, order: Order | None, need_s: float, now: float, regroup: int = 0) -> Stop:
    """Collective. Orders reach ranks at different times, so each tells what it knows; rank 0's clock and need count.

    `regroup`: the newest generation this rank was told to go into. A stop that anybody was told comes first.
    """
    rows = agreement.exchange([*_row(order, need_s, now), float(regroup)])
    return _merged(rows, order.reason if order else ELSEWHERE)


def _row(order: Order | None, need_s: float, now: float) -> list[float]:
    if order is None:
        return [0.0, 0.0, 0.0, math.inf, need_s, now, 0.0]
    deadline = math.inf if order.deadline is None else order.deadline
    return [1.0, float(order.why == "stopped"), float(order.save), deadline, need_s, now, float(order.may_stay)]


def _merged(rows: Sequence[Sequence[float]], reason: str) -> Stop:
    told = [row for row in rows if row[0]]
    need_s, now = rows[0][4], rows[0][5]
    regroup = 0 if told else int(max(row[7] for row in rows))
    return Stop(
        reason=reason,
        why="stopped" if any(row[1] for row in told) else "drained",
        save=all(row[2] for row in told),
        left_s=min((row[3] for row in told), default=math.inf) - now,
        need_s=need_s,
        regroup=regroup,
        may_stay=all(row[6] for row in told),
    )
