"""A source, a receiver or one that is both dies at every phase of a movement, or it is called off: nobody is left with
anything but what it says it holds, and the survivors move on from there.
"""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_elastic.migrate.boxes import intersection
from slurm_elastic.migrate.execute import Phase
from slurm_elastic.migrate.model import Box, Device, Tensor
from slurm_elastic.migrate.planner import plan
from slurm_elastic.migrate.problem import problem
from slurm_elastic.migrate.store import Key
from slurm_elastic.migrate.store_boxes import without
from tests.training.failing_movers import COLUMNS, DEVICES, LAST, NAMES, ROWS, Fault, layout_of, move_and_fail, rows
from tests.training.movers import store_at
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

BEFORE, AFTER = (Phase.AGREED, 0), (Phase.DONE, LAST + 1)
IN_A_STEP = [(Phase.POSTED, 1), (Phase.ARRIVED, 1), (Phase.VERIFIED, 1), (Phase.RELEASED, 1)]
KILLS = [
    *(("shared", Fault("kill", "d1", *at)) for at in (BEFORE, *IN_A_STEP, (Phase.POSTED, LAST), AFTER)),
    *(("shared", Fault("kill", "d0", *at)) for at in (IN_A_STEP[0], IN_A_STEP[1], IN_A_STEP[3])),
    *(("shared", Fault("kill", "d2", *at)) for at in IN_A_STEP[:3]),
    *(("gloo", Fault("kill", "d1", *at)) for at in (IN_A_STEP[0], IN_A_STEP[3])),
    ("gloo", Fault("kill", "d2", *IN_A_STEP[1])),
    ("shared", Fault("kill", "d1", *IN_A_STEP[2], keep_old=True)),
]
CANCELS = [
    *((kind, Fault("cancel", "d1", *at)) for kind in ("shared", "gloo") for at in IN_A_STEP[:2]),
    ("shared", Fault("cancel", "d2", *IN_A_STEP[0], keep_old=True)),
]


def named(value: Any) -> str:
    return f"{value.victim}-{value.phase.value}-{value.step}" if isinstance(value, Fault) else str(value)


@pytest.mark.parametrize(("kind", "fault"), KILLS, ids=named)
def test_survivors_of_a_death_hold_what_they_say_and_move_on(kind: str, fault: Fault, tmp_path: Path) -> None:
    survivors = tuple(device for device in DEVICES if device != fault.victim)

    codes = run(kind, fault, survivors, tmp_path / "log")

    assert codes == [-signal.SIGKILL if device == fault.victim else 0 for device in DEVICES]


@pytest.mark.parametrize(("kind", "fault"), CANCELS, ids=named)
def test_a_movement_that_was_called_off_goes_on_from_what_it_left(kind: str, fault: Fault, tmp_path: Path) -> None:
    codes = run(kind, fault, DEVICES, tmp_path / "log")

    assert codes == [0] * len(DEVICES)


def run(kind: str, fault: Fault, survivors: tuple[str, ...], log: Path) -> list[int]:
    """Exit codes of the devices. Checks what the survivors hold, together, and has them move on."""
    store = store_at(0, served=True)
    world = WorldOfProcesses(len(DEVICES), move_and_fail, store.port, kind, fault, survivors, log=log)
    try:
        held = {device: list(layout_of(store.get(f"held/{device}"))) for device in survivors}
        assert_nothing_is_lost(held)
        if not fault.keep_old:
            make_next_plan(store, survivors, held)
        codes = world.wait(90, kill_rest=False)
    except BaseException:
        world.kill()
        print(log.read_text())
        raise
    print(log.read_text())
    assert store.check(["fired"])
    if fault.step < LAST and not fault.keep_old:
        assert store.check(["failed"]), "the fault came when all was over"
    assert fault.keep_old or store.get("moved on") == str(len(survivors)).encode()
    return codes


def assert_nothing_is_lost(held: dict[str, list[Key]]) -> None:
    """d3 has all of it; what the others hold beside it is disjoint on each."""
    for device, keys in held.items():
        for name in NAMES:
            boxes = [box for key, box in keys if key == name]
            for number, box in enumerate(boxes):
                assert not any(intersection(box, other) for other in boxes[:number]), (device, boxes)
    assert not any(without([rows(0, ROWS)], [box for key, box in held["d3"] if key == name]) for name in NAMES)


def make_next_plan(store: Any, survivors: tuple[str, ...], held: dict[str, list[Key]]) -> None:
    """All but d3 share the rows; somebody has a replica."""
    movers = len(survivors) - 1
    cuts = [ROWS * number // movers for number in range(movers + 1)]
    boxes = [*(rows(first, end) for first, end in itertools.pairwise(cuts)), rows(0, ROWS)]
    tensors = {name: Tensor((ROWS, COLUMNS), "float32") for name in NAMES}
    devices = [Device(device, "n0") for device in survivors]
    before = [(at, holdings_of(held[device])) for at, device in enumerate(survivors)]
    after = [dict.fromkeys(NAMES, (box,)) for box in boxes]
    made = plan(problem(tensors, devices, before, after)).plan
    assert made.status == "ok"
    wanted = {device: [(name, *box) for name in NAMES] for device, box in zip(made.host, boxes, strict=True)}
    store.set("next/wanted", msgspec.json.encode(wanted))
    store.set("next/plan", msgspec.json.encode(made))


def holdings_of(keys: list[Key]) -> dict[str, tuple[Box, ...]]:
    return {name: tuple(box for key, box in keys if key == name) for name in NAMES}
