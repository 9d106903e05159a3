"""Processes that move state while one of them dies or calls it off; the survivors then move on from what they hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch.distributed as dist

from slurm_elastic.errors import MigrationError
from slurm_elastic.migrate.execute import Migration, Options, Phase
from slurm_elastic.migrate.model import Box, Piece, Plan, Receiving, Sending, Step, Tensor
from slurm_elastic.migrate.store import Key
from slurm_elastic.migrate.transport import Transport
from tests.training.migration_cases import Case, boxes_of
from tests.training.movers import MAKERS, MEETING_S, check_bits, check_values, store_at

NAMES = ("a", "b", "c", "d")
ROWS, COLUMNS = 12, 200_000  # a step from d1 to d2 fills the shared memory: no sender is through while d2 is behind
DEVICES = ("d0", "d1", "d2", "d3")
LAST = 3  # the step of the last tensor


@dataclass(frozen=True)
class Fault:
    """`what`: kill or cancel. At `phase` of step `step` of `victim`."""

    what: str
    victim: str
    phase: Phase
    step: int
    keep_old: bool = False


def rows(first: int, end: int) -> Box:
    return Box((first, 0), (end - first, COLUMNS))


def growing() -> tuple[Case, Plan]:
    """Two shards become three, one tensor a step: d0 only sends, d1 sends and receives, d2 only receives.

    d3 has a replica of everything and keeps it: nothing is ever lost with another one.
    """
    tensors = {name: Tensor((ROWS, COLUMNS), "float32") for name in NAMES}
    whole = tuple((name, rows(0, ROWS)) for name in NAMES)
    case = Case(
        "growing",
        tensors,
        DEVICES,
        {"d0": _all(rows(0, 6)), "d1": _all(rows(6, 12)), "d2": (), "d3": whole},
        (_all(rows(0, 4)), _all(rows(4, 8)), _all(rows(8, 12)), whole),
    )
    first = tuple(
        Step(refer=(_piece(n, 0, 4),), send=(_sent("d1", n, 4, 6),), release=(_piece(n, 0, 6),)) for n in NAMES
    )
    second = tuple(
        Step(
            refer=(_piece(n, 6, 8),),
            send=(_sent("d2", n, 8, 12),),
            recv=(_received("d0", n, 4, 6),),
            release=(_piece(n, 6, 12),),
        )
        for n in NAMES
    )
    third = tuple(Step(recv=(_received("d1", n, 8, 12),)) for n in NAMES)
    return case, Plan("ok", DEVICES, {"d0": first, "d1": second, "d2": third})


def _all(box: Box) -> tuple[Key, ...]:
    return tuple((name, box) for name in NAMES)


def _piece(name: str, first: int, end: int) -> Piece:
    return Piece(name, *rows(first, end))


def _sent(to: str, name: str, first: int, end: int) -> Sending:
    return Sending(to, name, *rows(first, end))


def _received(source: str, name: str, first: int, end: int) -> Receiving:
    return Receiving(source, name, *rows(first, end))


def move_and_fail(rank: int, port: int, kind: str, fault: Fault, survivors: tuple[str, ...]) -> None:
    case, plan = growing()
    device = DEVICES[rank]
    store = store_at(port)
    transport = MAKERS[kind](dist.PrefixStore("first", store), DEVICES, rank)
    old = boxes_of(case, case.old[device])

    movement = _movement(case, plan, device, old, transport, fault, store)
    try:
        movement.run()
        word = "through"
    except MigrationError as failed:
        word = "failed"
        store.set("failed", device)
        print(f"{device}: {failed}", flush=True)

    transport.close()
    _check(case, plan, device, movement, word, fault, old)
    held = movement.holdings()
    store.set(f"held/{device}", msgspec.json.encode([[name, *box] for name, box in held]))
    if device in survivors and not fault.keep_old:
        _move_on(store, kind, device, survivors, case, held)


def _movement(
    case: Case, plan: Plan, device: str, old: dict[Key, Any], transport: Transport, fault: Fault, store: Any
) -> Migration:
    def watch(phase: Phase, step: int) -> None:
        if (device, phase, step) != (fault.victim, fault.phase, fault.step):
            return
        store.set("fired", "yes")
        if fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        transport.abort()

    options = Options(timeout_s=MEETING_S, keep_old=fault.keep_old, watch=watch)
    return Migration(plan, device, old, case.new_of(plan, device), case.tensors, transport, options)


def _check(
    case: Case, plan: Plan, device: str, movement: Migration, word: str, fault: Fault, old: dict[Key, Any]
) -> None:
    if word == "through" or movement.has_new:
        check_bits(case, movement.boxes, case.new_of(plan, device))
    if movement.has_old:
        assert set(old) == set(case.old[device])
        check_values(case, old)
    assert word == "through" or not fault.keep_old or movement.has_old
    check_values(case, movement.holdings())  # never a wrong element among what it says it holds


def _move_on(store: Any, kind: str, device: str, survivors: tuple[str, ...], case: Case, held: dict[Key, Any]) -> None:
    """The next movement starts from the half-new layout; the test makes its plan."""
    keys = msgspec.json.decode(
        store.get("next/wanted"), type=dict[str, list[tuple[str, tuple[int, ...], tuple[int, ...]]]]
    )
    plan = msgspec.json.decode(store.get("next/plan"), type=Plan)
    if dist.is_initialized():
        dist.destroy_process_group()
    wanted = [(name, Box(offset, size)) for name, offset, size in keys[device]]
    transport = MAKERS[kind](dist.PrefixStore("second", store), survivors, survivors.index(device))
    movement = Migration(plan, device, held, wanted, case.tensors, transport, Options(timeout_s=MEETING_S))
    movement.run()
    check_bits(case, movement.boxes, tuple(wanted))
    transport.close()
    store.add("moved on", 1)


def layout_of(encoded: bytes) -> Iterable[Key]:
    return [(name, Box(tuple(offset), tuple(size))) for name, offset, size in msgspec.json.decode(encoded)]
