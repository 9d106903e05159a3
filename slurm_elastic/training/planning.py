"""The plan of a regroup, from what all workers said: equal on all of them, because its input is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slurm_elastic.migrate.capture_layout import Described, Known
from slurm_elastic.migrate.model import Box, Device, Plan, Tensor
from slurm_elastic.migrate.planner import plan
from slurm_elastic.migrate.problem import Limits, problem
from slurm_elastic.wire import messages as m

CHUNK_BYTES = 64 << 20  # out, and in, per worker and step: bounds the buffers, and how long old memory is kept


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Where a training stands: optimizer steps done, samples used, and which data that was."""

    step: int = 0
    cursor: int = 0
    signature: dict[str, int | bool] = {}


class Said(msgspec.Struct, frozen=True):
    """What one worker tells the others when they meet. `described` None: it holds nothing."""

    point: Point
    described: Described | None
    holds: dict[str, tuple[Box, ...]]
    shared: str  # address of its shared memory


def device_name(seat: m.Seat) -> str:
    return f"{seat.node}/{seat.local_rank}/{seat.launch}"


def devices_of(order: m.Regroup) -> list[Device]:
    """In the order of global ranks; those who depart may send only."""
    staying = [Device(device_name(seat), seat.node) for seat in order.seats]
    return staying + [Device(device_name(seat), seat.node, "leaving") for seat in order.departing]


def make_plan(
    order: m.Regroup,
    said: Sequence[Said],
    point: Point,
    old: Known,
    wishes: Sequence[Described],
    aliases: Mapping[str, str],
) -> tuple[Plan, dict[str, Tensor]]:
    """`said`: by place in `order`; only holders of `point` count. `wishes`: by global rank. Also: all tensors."""
    tensors = {aliases.get(name, name): tensor for name, tensor in old.tensors.items()}
    held = [
        (device, _renamed(one.holds.items(), aliases))
        for device, one in enumerate(said)
        if one.described is not None and one.point == point
    ]
    wants = [_renamed(((n, tuple(p.box for p in w.parts(n))) for n in w.tensors), aliases) for w in wishes]
    found = problem(tensors, devices_of(order), held, wants, limits=Limits(chunk=CHUNK_BYTES))
    return plan(found, settled=range(len(wants))).plan, tensors


def warm_up() -> None:
    """Make a plan for nobody: the solver's imports take half a second, which must not be part of the first change."""
    whole, halves = Box((0,), (2,)), (Box((0,), (1,)), Box((1,), (1,)))
    devices = [Device("a", "a"), Device("b", "b")]
    new = [{"w": (half,)} for half in halves]
    plan(problem({"w": Tensor((2,), "float32")}, devices, [(0, {"w": (whole,)})], new))
    plan(problem({"w": Tensor((2,), "float32")}, devices, [(0, {"w": (whole,)})], new), settled=range(2))


def _renamed(holds: Iterable[tuple[str, tuple[Box, ...]]], aliases: Mapping[str, str]) -> dict[str, tuple[Box, ...]]:
    return {aliases.get(name, name): boxes for name, boxes in holds}
