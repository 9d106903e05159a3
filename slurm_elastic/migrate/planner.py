"""The pure planner: from two layouts and the devices to who hosts, keeps, sends and receives what, and when.

Equal input gives an equal plan on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.hosts import Hosting, host_map
from slurm_elastic.migrate.model import Claims, Plan
from slurm_elastic.migrate.order import in_place
from slurm_elastic.migrate.problem import Problem
from slurm_elastic.migrate.schedule import Schedule, schedule
from slurm_elastic.migrate.score import measure
from slurm_elastic.migrate.stock import Stock, cost_matrix, lost, stock
from slurm_elastic.migrate.transfers import Movement, bytes_of, movement

SMALL_MATRIX = 64  # cells; up to this a plan shows it


class Outline(NamedTuple):
    """The decisions of a plan without its programs: what scales to thousands of ranks."""

    stock: Stock
    hosting: Hosting
    moves: Movement


class Planned(NamedTuple):
    """`outline`: None where there is no transition. `peak_extra`: bytes above the larger of before and after."""

    plan: Plan
    outline: Outline | None
    peak_extra: int


def outline(problem: Problem, host: Sequence[int] | None = None) -> Outline | Plan:
    """Host map and transfers; or the plan that says why there are none: infeasible, or unrecoverable.

    `host`: the device (index) of each new rank where that is settled already.
    """
    if len(problem.hosts) < problem.ranks:
        return Plan("infeasible")
    s = stock(problem)
    gone = lost(s)
    if gone:
        return Plan("unrecoverable", lost=gone)
    hosting = host_map(s) if host is None else Hosting(np.array(host, np.int64), (), ())
    return Outline(s, hosting, movement(s, hosting.host))


def plan(problem: Problem, settled: Sequence[int] | None = None) -> Planned:
    """The whole plan, as it is executed; `settled`: the host of each new rank, where that is known.

    Raises UserMistake where a chunk is less than an element that must travel.
    """
    found = outline(problem, settled)
    if isinstance(found, Plan):
        return Planned(found, None, 0)
    _check_chunk(problem, found)
    found, (programs, peak_extra) = _within_memory(found)
    host = found.hosting.host
    matrix = cost_matrix(found.stock) if problem.ranks * len(problem.devices) <= SMALL_MATRIX else None
    ids = [device.id for device in problem.devices]
    made = Plan(
        "ok",
        host=tuple(ids[d] for d in host.tolist()),
        programs={ids[d]: steps for d, steps in programs.items()},
        claims=claims(found),
        cost_matrix=matrix,
    )
    return Planned(made, found, peak_extra)


def _within_memory(found: Outline) -> tuple[Outline, Schedule]:
    """Programs; where they miss the memory limit, of another host map that is as good, if that keeps it."""
    problem = found.stock.problem
    best = found, schedule(problem, found.hosting.host, found.moves)
    most = problem.limits.peak_extra
    if most is None or best[1].peak_extra <= most:
        return best
    for ties in (in_place(problem), np.zeros(0, np.int64)):
        s = replace(found.stock, problem=replace(problem, previous=ties))
        hosting = host_map(s)
        if hosting.value == found.hosting.value and hosting.bound == found.hosting.bound:
            other = Outline(s, hosting, movement(s, hosting.host))
            programs = schedule(problem, hosting.host, other.moves)
            if programs.peak_extra < best[1].peak_extra:
                best = other, programs
            if programs.peak_extra <= most:
                break
    return best


def claims(found: Outline) -> Claims:
    """Bytes that will be moved, and the places they go to."""
    problem, travels = found.stock.problem, found.moves.travels
    size = bytes_of(found.stock, travels)
    crosses = problem.nodes[travels.source] != problem.nodes[travels.target] if len(travels) else size > 0
    return Claims(
        total_bytes=int(size.sum()),
        inter_node_bytes=int(size[crosses].sum()),
        max_send_bytes=int(found.moves.loads.max(initial=0)),
        nodes=measure(found.stock, found.hosting.host, "nodes"),
        span=measure(found.stock, found.hosting.host, "span"),
    )


def as_json(made: Plan) -> dict[str, object]:
    """A plan in the exchange format."""
    shown: dict[str, object] = msgspec.to_builtins(made)
    if made.status == "ok":
        shown = {"status": "ok", "host": list(made.host), "programs": {}, **shown}
    return shown


def _check_chunk(problem: Problem, found: Outline) -> None:
    chunk = problem.limits.chunk
    for pattern in sorted(set(found.moves.travels.pattern.tolist())) if chunk is not None else ():
        each = problem.patterns[pattern]
        if each.item > (chunk or 0):
            raise UserMistake(
                f"chunk_bytes {chunk} is less than one element of {each.names[0]} ({each.item} bytes)",
                fix=f"chunks of at least {each.item} bytes",
            )
