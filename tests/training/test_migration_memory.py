"""How much memory a movement takes on top of the larger side: measured as the process's resident memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from benchmarks import state_movement_ways as ways
from slurm_elastic.migrate.execute import Migration
from slurm_elastic.migrate.model import Tensor
from tests.training.movers import MAKERS, SLOT_BYTES, store_at
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

CHUNK = 8 << 20
ROWS = 2400  # 48 tensors of 2400 x 1024: 450 MiB in all
PEERS = 3
# A ring each way with each peer, and what allocator, buffers of Python and threads of gloo take anyway.
OVERHEAD_BYTES = 2 * PEERS * 2 * SLOT_BYTES + (16 << 20)


def resident_bytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) << 10


def move(rank: int, port: int, kind: str, before: int, after: int, axis: int) -> None:
    change = ways.Move("m", 48, (ROWS, 1024), before, after, axis)
    made = ways.plan_of(change, 4, CHUNK)
    names = tuple(ways.device(number) for number in range(4))
    transport = MAKERS[kind](store_at(port), names, rank)
    old = ways.old_boxes(change, rank)
    old_bytes = sum(tensor.nbytes for tensor in old.values())
    wanted = [(name, change.box(after, made.host.index(names[rank]))) for name in change.names()] if (
        names[rank] in made.host
    ) else []  # fmt: skip
    new_bytes = sum(box.size[0] * box.size[1] * 4 for _, box in wanted)
    tensors = {name: Tensor(change.shape, "float32") for name in change.names()}
    torch.zeros(1 << 20).sum()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts from now on
    start = resident_bytes("VmRSS")

    movement = Migration(made, names[rank], old, wanted, tensors, transport)
    movement.run()

    extra = resident_bytes("VmHWM") - start - (max(old_bytes, new_bytes) - old_bytes)
    allowed = max(old_bytes, new_bytes) // 10 + 2 * CHUNK + OVERHEAD_BYTES
    print(f"{rank}: {extra >> 20} MiB of {allowed >> 20}; old {old_bytes >> 20}, new {new_bytes >> 20}", flush=True)
    assert extra <= allowed
    ways.check(change, movement.boxes, wanted[0][1] if wanted else None)


@pytest.mark.parametrize(
    ("kind", "before", "after", "axis"), [("shared", 3, 4, 0), ("gloo", 4, 3, 0), ("gloo", 2, 4, 1)]
)
def test_a_movement_takes_a_tenth_and_a_chunk_each_way(
    kind: str, before: int, after: int, axis: int, tmp_path: Path
) -> None:
    store = store_at(0, served=True)
    log = tmp_path / "log"

    codes = WorldOfProcesses(4, move, store.port, kind, before, after, axis, log=log).wait(100)

    print(log.read_text())
    assert codes == [0] * 4, log.read_text()
