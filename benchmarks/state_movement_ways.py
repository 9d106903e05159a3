"""The ways a sharded state can take from one layout to another: each is called by all processes, and moves everything.

A way starts from the old boxes of this process and gives the new ones, in memory that nobody touched before.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from slurm_elastic.migrate.execute import Migration, Options
from slurm_elastic.migrate.model import Box, Device, Plan, Tensor
from slurm_elastic.migrate.planner import plan
from slurm_elastic.migrate.problem import Limits, problem
from slurm_elastic.migrate.store import Key
from slurm_elastic.migrate.transport import Transport

DTYPE = torch.float32


@dataclass(frozen=True)
class Move:
    """`count` equal tensors of `shape`, cut along `axis` into `before` parts, then into `after`. `away`: the processes
    that have it leave, so that others get all of it.
    """

    name: str
    count: int
    shape: tuple[int, int]
    before: int
    after: int
    axis: int = 0
    away: bool = False

    def names(self) -> list[str]:
        return [f"t{number:03}" for number in range(self.count)]

    def box(self, parts: int, part: int) -> Box:
        """As torch.chunk cuts."""
        length = self.shape[self.axis]
        each = -(-length // parts)
        first, end = min(length, part * each), min(length, (part + 1) * each)
        offset, size = [0, 0], list(self.shape)
        offset[self.axis], size[self.axis] = first, end - first
        return Box(tuple(offset), tuple(size))


def device(rank: int) -> str:
    return f"d{rank}"


def plan_of(move: Move, size: int, chunk: int) -> Plan:
    tensors = {name: Tensor(move.shape, "float32") for name in move.names()}
    leaving = move.before if move.away else 0
    devices = [Device(device(rank), "n0", "leaving" if rank < leaving else "up") for rank in range(size)]
    old = [(rank, dict.fromkeys(tensors, (move.box(move.before, rank),))) for rank in range(move.before)]
    new = [dict.fromkeys(tensors, (move.box(move.after, rank),)) for rank in range(move.after)]
    made = plan(problem(tensors, devices, old, new, limits=Limits(chunk=chunk))).plan
    assert made.status == "ok"
    return made


def values(move: Move, box: Box) -> torch.Tensor:
    """What is there: every element its place in the tensor."""
    rows = torch.arange(box.offset[0], box.offset[0] + box.size[0], dtype=DTYPE)
    columns = torch.arange(box.offset[1], box.offset[1] + box.size[1], dtype=DTYPE)
    return rows[:, None] * move.shape[1] + columns


def old_boxes(move: Move, rank: int) -> dict[Key, torch.Tensor]:
    if rank >= move.before:
        return {}
    box = move.box(move.before, rank)
    return {(name, box): values(move, box) for name in move.names()}


def check(move: Move, new: dict[Key, torch.Tensor], wanted: Box | None) -> None:
    assert len(new) == (move.count if wanted else 0)
    for (_, box), tensor in new.items():
        assert box == wanted
        assert torch.equal(tensor, values(move, box))


def direct(move: Move, made: Plan, rank: int, transport: Transport) -> tuple[float, dict[Key, torch.Tensor]]:
    """Ours. The plan is made before anything stops, so it is not part of the time."""
    old = old_boxes(move, rank)
    new = [(name, move.box(move.after, made.host.index(device(rank)))) for name in move.names()] if (
        device(rank) in made.host
    ) else []  # fmt: skip
    tensors = {name: Tensor(move.shape, "float32") for name in move.names()}
    dist.barrier()
    began = time.perf_counter()
    movement = Migration(made, device(rank), old, new, tensors, transport, Options())
    movement.run()
    movement.commit()
    dist.barrier()
    return time.perf_counter() - began, movement.boxes


def raw(made: Plan, move: Move, rank: int, warm: bool) -> float:
    """gloo alone: the plan's bytes of each pair as one message of its own, packed before and not unpacked after."""
    pairs = bytes_by_pair(made)
    out = {to: torch.ones(size, dtype=torch.uint8) for (source, to), size in pairs.items() if source == device(rank)}
    inn = {source: torch.empty(size, dtype=torch.uint8) for (source, to), size in pairs.items() if to == device(rank)}
    if warm:
        for buffer in inn.values():
            buffer.zero_()
    dist.barrier()
    began = time.perf_counter()
    calls = [dist.P2POp(dist.irecv, buffer, int(peer[1:])) for peer, buffer in inn.items()]
    calls += [dist.P2POp(dist.isend, buffer, int(peer[1:])) for peer, buffer in out.items()]
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()
    dist.barrier()
    return time.perf_counter() - began


def bytes_by_pair(made: Plan) -> dict[tuple[str, str], int]:
    pairs: dict[tuple[str, str], int] = {}
    for source, steps in sorted(made.programs.items()):
        for step in steps:
            for one in step.send:
                size = one.size[0] * one.size[1] * DTYPE.itemsize
                pairs[source, one.to] = pairs.get((source, one.to), 0) + size
    return pairs


class ByDcp:
    """Save by the old processes, load by the new ones. `directory` is emptied before and after."""

    def __init__(self, directory: Path, meshes: dict[int, DeviceMesh]) -> None:
        self._directory = directory
        self._meshes = meshes

    def __call__(self, move: Move, rank: int) -> tuple[float, dict[Key, torch.Tensor]]:
        local = {name: tensor for (name, _), tensor in old_boxes(move, rank).items()}
        old = self._state(move, move.before, rank, lambda name: local[name])
        if rank == 0:
            shutil.rmtree(self._directory, ignore_errors=True)
        dist.barrier()
        began = time.perf_counter()
        if rank < move.before:
            writer = FileSystemWriter(str(self._directory), sync_files=True)
            save(old, storage_writer=writer, process_group=self._meshes[move.before].get_group())
        dist.barrier()
        box = move.box(move.after, rank) if rank < move.after else None
        fresh = {name: torch.empty(box.size, dtype=DTYPE) for name in move.names()} if box else {}
        if box:
            new = self._state(move, move.after, rank, lambda name: fresh[name])
            reader = FileSystemReader(str(self._directory))
            load(new, storage_reader=reader, process_group=self._meshes[move.after].get_group())
        dist.barrier()
        taken_s = time.perf_counter() - began
        if rank == 0:
            shutil.rmtree(self._directory, ignore_errors=True)
        return taken_s, {(name, box): tensor for name, tensor in fresh.items() if box}

    def _state(self, move: Move, parts: int, rank: int, local: Callable[[str], torch.Tensor]) -> dict[str, Any]:
        if rank >= parts:
            return {}
        return {
            name: DTensor.from_local(
                local(name), self._meshes[parts], [Shard(move.axis)], shape=torch.Size(move.shape),
                stride=(move.shape[1], 1), run_check=False,
            )
            for name in move.names()
        }  # fmt: skip


def gather_save_scatter(move: Move, rank: int, path: Path) -> tuple[float, dict[Key, torch.Tensor]]:
    """Everything to rank 0, torch.save and torch.load of one file there, and out again."""
    local = {name: tensor for (name, _), tensor in old_boxes(move, rank).items()}
    dist.barrier()
    began = time.perf_counter()
    whole = {name: _gathered(move, rank, local.pop(name, None)) for name in move.names()}
    if rank == 0:
        torch.save(whole, path)
        whole = torch.load(path, weights_only=True)
    box = move.box(move.after, rank) if rank < move.after else None
    new = {(name, box): _scattered(move, rank, whole.pop(name)) for name in move.names()}
    dist.barrier()
    taken_s = time.perf_counter() - began
    if rank == 0:
        path.unlink()
    return taken_s, {(name, box): tensor for (name, _), tensor in new.items() if box and tensor is not None}


def _part(move: Move, whole: torch.Tensor, parts: int, part: int) -> torch.Tensor:
    box = move.box(parts, part)
    return whole.narrow(move.axis, box.offset[move.axis], box.size[move.axis])


def _gathered(move: Move, rank: int, local: torch.Tensor | None) -> torch.Tensor | None:
    if rank != 0:
        if local is not None:
            dist.send(local, 0)
        return None
    assert local is not None
    whole = torch.empty(move.shape, dtype=DTYPE)
    _part(move, whole, move.before, 0).copy_(local)
    for peer in range(1, move.before):
        buffer = torch.empty(move.box(move.before, peer).size, dtype=DTYPE)
        dist.recv(buffer, peer)
        _part(move, whole, move.before, peer).copy_(buffer)
    return whole


def _scattered(move: Move, rank: int, whole: torch.Tensor | None) -> torch.Tensor | None:
    if rank == 0:
        assert whole is not None
        for peer in range(1, move.after):
            dist.send(_part(move, whole, move.after, peer).contiguous(), peer)
        return _part(move, whole, move.after, 0).clone()
    if rank >= move.after:
        return None
    buffer = torch.empty(move.box(move.after, rank).size, dtype=DTYPE)
    dist.recv(buffer, 0)
    return buffer
