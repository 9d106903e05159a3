"""Processes that move state: each makes its boxes, carries its program out and checks every bit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.migrate.execute import Migration
from slurm_elastic.migrate.execute_schedule import participants
from slurm_elastic.migrate.model import Plan
from slurm_elastic.migrate.store import Key
from slurm_elastic.migrate.transport import Transport
from slurm_elastic.migrate.transport_parts import bits
from slurm_elastic.migrate.transport_shared import SharedMemoryTransport
from slurm_elastic.migrate.transport_torch import TorchTransport
from slurm_elastic.training.groups import Sockets
from tests.training.migration_cases import Case, boxes_of, cut_out, truth

MEETING_S = 60.0
SLOT_BYTES = 1 << 20  # small: a message takes several


def store_at(port: int, *, served: bool = False) -> Any:
    """A test's own process serves it: it outlives all workers."""
    timeout = timedelta(seconds=MEETING_S)
    return dist.TCPStore("127.0.0.1", port, is_master=served, timeout=timeout, wait_for_workers=False)


def gloo(store: Any, names: tuple[str, ...], rank: int) -> TorchTransport:
    sockets = Sockets()
    with sockets.noting():
        dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=len(names))
    assert dist.group.WORLD
    return TorchTransport({name: at for at, name in enumerate(names)}, dist.group.WORLD, sever=sockets.cut)


def shared(store: Any, names: tuple[str, ...], rank: int) -> SharedMemoryTransport:
    transport = SharedMemoryTransport(names[rank], slot_bytes=SLOT_BYTES)
    store.set(f"address/{names[rank]}", transport.address)
    transport.introduce({name: store.get(f"address/{name}").decode() for name in names}, MEETING_S)
    return transport


MAKERS: dict[str, Callable[[Any, tuple[str, ...], int], Transport]] = {"gloo": gloo, "shared": shared}


def check_bits(case: Case, boxes: dict[Key, torch.Tensor], keys: tuple[Key, ...]) -> None:
    """`boxes` are exactly `keys`, and right."""
    assert set(boxes) == set(keys), (sorted(boxes), sorted(keys))
    check_values(case, boxes)


def check_values(case: Case, boxes: dict[Key, torch.Tensor]) -> None:
    for (name, box), tensor in boxes.items():
        expected = cut_out(truth(name, case.tensors[name]), box)
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, (case.id, name, box)
        assert torch.equal(bits(tensor), bits(expected)), (case.id, name, box)


def bytes_in_plan(case: Case, plan: Plan, device: str) -> tuple[int, int]:
    """Sent and received."""
    program = plan.programs.get(device, ())

    def size(one: Any) -> int:
        itemsize = torch.empty((), dtype=getattr(torch, case.tensors[one.tensor].dtype)).element_size()
        return torch.Size(one.size).numel() * itemsize

    return sum(size(one) for s in program for one in s.send), sum(size(one) for s in program for one in s.recv)


def move_all(rank: int, port: int, kind: str, work: list[tuple[Case, Plan]], size: int) -> None:
    """Case after case over one transport; device k of every case is process k."""
    names = tuple(f"p{number}" for number in range(size))
    transport = MAKERS[kind](store_at(port), names, rank)
    for case, plan in work:
        if rank < len(case.devices):
            move_one(case, plan, case.devices[rank], Renamed(transport, dict(zip(case.devices, names, strict=False))))
    transport.close()
    print(f"moved {rank}", flush=True)


def move_one(case: Case, plan: Plan, device: str, transport: Transport) -> None:
    old = boxes_of(case, case.old.get(device, ()))
    adopted = {key: old[key] for key in case.new_of(plan, device) if key in old}
    taking_part = participants(plan)
    if device not in taking_part:
        return
    before = transport.traffic.sent.total() + transport.traffic.received.total()

    movement = Migration(plan, device, old, case.new_of(plan, device), case.tensors, transport)
    movement.run()

    check_bits(case, movement.boxes, case.new_of(plan, device))
    assert all(movement.boxes[key] is tensor for key, tensor in adopted.items())
    assert (movement.moved.sent.total(), movement.moved.received.total()) == bytes_in_plan(case, plan, device)
    on_the_wire = transport.traffic.sent.total() + transport.traffic.received.total() - before
    state = movement.moved.sent.total() + movement.moved.received.total() + movement.moved.sealing_bytes
    others = len(taking_part) - 1
    talks = others if device == taking_part[0] else min(1, others)  # all agree with the first, by 32 bytes each
    assert on_the_wire - state == talks * 32 * (1 + len(taking_part))


class Renamed:
    """Devices of a case as the peers of a transport."""

    def __init__(self, inner: Transport, names: dict[str, str]) -> None:
        self._inner = inner
        self._names = names
        self.traffic = inner.traffic

    def post(self, sends: Any, receives: Any) -> Any:
        return self._inner.post(*([m._replace(peer=self._names[m.peer]) for m in ms] for ms in (sends, receives)))

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None: ...
