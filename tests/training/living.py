"""A level-2 training for the tests, and a supervisor that orders its generations."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import slurm_elastic.training as elastic
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.link import Link
from tests.training.supervising import ScriptedSupervisor, publishing
from tests.training.trainings import samples

GLOBAL_BATCH = 8
EPOCHS = 12
SLOW_S = 0.4
NODE = "here"


def build_of(kind: str) -> elastic.Build:
    """A small network for any number of workers (hsdp and tp: even numbers are divided in two dimensions)."""

    def build(world: elastic.World) -> elastic.Parts:
        width = 8 if kind == "tp" else 7  # torch's tensor parallelism needs even parts
        model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).double()
        if kind == "forgetful" and world.size > 1:
            model.append(nn.Linear(3, 3).double())
        share = None
        if kind in SHARDED:
            mesh = SHARDED[kind](world.size)
            shard(model, mesh)
            share = (mesh["shard"].get_local_rank(), mesh["shard"].size()) if kind == "tp" else None
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        wrap = (
            (lambda module: DistributedDataParallel(module, init_sync=False)) if kind in ("ddp", "forgetful") else None
        )
        return elastic.Parts(model, optimizer, wrap=wrap, data_parallel=share)

    return build


def mesh_1d(size: int) -> DeviceMesh:
    return init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))


def mesh_hsdp(size: int) -> DeviceMesh:
    copies = 2 if size % 2 == 0 else 1
    return init_device_mesh("cpu", (copies, size // copies), mesh_dim_names=("copy", "shard"))


def mesh_tp(size: int) -> DeviceMesh:
    parts = 2 if size % 2 == 0 else 1
    return init_device_mesh("cpu", (size // parts, parts), mesh_dim_names=("shard", "tp"))


SHARDED = {"fsdp": mesh_1d, "hsdp": mesh_hsdp, "tp": mesh_tp}


def shard(model: nn.Sequential, mesh: DeviceMesh) -> None:
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    over = mesh["shard"] if "tp" in names else mesh
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=over)
    fully_shard(model, mesh=over)


def train(rank: int, kind: str, slow: str, out: str = "") -> None:
    """Takes its time as long as there is a file `slow`. The final parameters go to `out`."""
    logging.basicConfig(level=logging.INFO)
    run = elastic.init(seed=1, global_batch_size=GLOBAL_BATCH, micro_batch_size=2)
    inputs, targets = samples()
    data = run.data(len(inputs), epochs=EPOCHS)
    parts = run.build(build_of(kind))
    run.schedule(parts.optimizer, lambda step: 1 / (1 + 0.01 * step))
    for batch in run.steps(data):
        with batch:
            parts.optimizer.zero_grad()
            for micro in batch.micro_batches():
                micro.backward(nn.functional.mse_loss(parts.model(inputs[micro.indices]), targets[micro.indices]))
            parts.optimizer.step()
        if Path(slow).exists():
            time.sleep(SLOW_S)
    if run.is_finished and out:
        state = {name.removeprefix("module."): whole(value) for name, value in parts.model.state_dict().items()}
        if run.global_rank == 0:
            torch.save(state, out)


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


class Director(ScriptedSupervisor):
    """Knows every worker by its seat. `steps`: the ledger as a supervisor would write it."""

    def __init__(self, path: Path) -> None:
        self.by_seat: dict[m.Seat, Link] = {}
        self.hellos: dict[m.Seat, m.WorkerHello] = {}
        self.steps: dict[int, m.StepDone] = {}
        self.done_in: dict[int, int] = {}
        self.order: m.Regroup | None = None  # the newest
        self.changed = threading.Condition()
        super().__init__(path, self._noted)

    def connected(self, link: Link, hello: m.AgentHello | m.WorkerHello) -> m.Welcome | m.Refused:
        assert isinstance(hello, m.WorkerHello)
        answer = super().connected(link, hello)
        seat = m.Seat(launch=hello.launch, node=hello.node, local_rank=hello.local_rank)
        with self.changed:
            self.by_seat[seat], self.hellos[seat] = link, hello
            self.changed.notify_all()
        order = self.order
        if order is not None and hello.generation < order.generation and seat in (*order.seats, *order.departing):
            asyncio.get_running_loop().call_soon(link.send, order)  # its connection was lost; welcome it first
        return answer

    def _noted(self, _: ScriptedSupervisor, link: Link, message: m.AnyMessage) -> None:
        publishing(self, link, message)
        with self.changed:
            if isinstance(message, m.Steps):
                for done in message.steps:
                    self.steps.setdefault(done.step, done)
                    self.done_in.setdefault(done.step, message.generation)
            self.changed.notify_all()

    def wait_for(self, what: str, is_so: object, timeout_s: float = 60.0) -> None:
        assert callable(is_so)
        with self.changed:
            assert self.changed.wait_for(is_so, timeout_s), f"{what}: not within {timeout_s} s; heard {self.heard[-5:]}"

    def wait_for_step(self, step: int) -> None:
        self.wait_for(f"step {step}", lambda: max(self.steps, default=0) >= step)

    def wait_for_ready(self, seats: list[m.Seat], stage: str) -> None:
        """All of them have introduced themselves as able to regroup."""
        self.wait_for(
            f"{stage} of {seats}",
            lambda: all(
                seat in self.hellos and self.hellos[seat].live and self.hellos[seat].stage == stage for seat in seats
            ),
        )

    def regroup(
        self, generation: int, seats: list[m.Seat], departing: tuple[m.Seat, ...] = (), *, planned: bool = True
    ) -> None:
        first = self.hellos[seats[0]]
        order = m.Regroup(
            epoch=1,
            generation=generation,
            before=generation - 1,
            seats=tuple(seats),
            departing=departing,
            reason="the test wants it",
            planned=planned,
            store_addr=first.address,
            store_port=first.store_port,
            ledger_step=max(self.steps, default=0),
        )
        with self.changed:
            self.order = order
            links = [self.by_seat[seat] for seat in (*seats, *departing)]
        for link in links:
            link.send(order)

    def wait_regrouped(self, generation: int, count: int) -> list[m.Regrouped]:
        def told() -> list[m.Regrouped]:
            return [each for _, each in self.heard if isinstance(each, m.Regrouped) and each.generation == generation]

        self.wait_for(f"generation {generation}", lambda: len(told()) >= count)
        return told()


def seats(launch: int, count: int) -> list[m.Seat]:
    return [m.Seat(launch=launch, node=NODE, local_rank=rank) for rank in range(count)]
