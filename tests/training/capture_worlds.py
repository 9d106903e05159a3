"""What the processes of the capture tests run: train, capture, carry to another world, fill, train on."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.migrate.capture import Captured, capture
from slurm_elastic.migrate.capture_buffers import share_buffers
from slurm_elastic.migrate.capture_layout import Described, Known, known, layout, renamed
from slurm_elastic.migrate.model import Box
from slurm_elastic.migrate.parts import Parts, construct
from slurm_elastic.migrate.parts_fill import fill
from slurm_elastic.migrate.parts_start import start
from slurm_elastic.migrate.parts_wanted import unwanted, wanted

CPU = torch.device("cpu")
FULL = tuple[dict[str, torch.Tensor], Known]
LAYERS = ("a", "b", "c")


@dataclass(frozen=True)
class Kind:
    """A way to train on ranks 0 to the product of `mesh` - 1."""

    name: str  # plain, ddp, fsdp, hsdp, fsdp_tp, tp, pp
    mesh: tuple[int, ...]
    optimizer: str = "adam"

    @property
    def ranks(self) -> list[int]:
        return list(range(math.prod(self.mesh)))


@dataclass(frozen=True)
class World:
    kind: Kind
    rank: int
    mesh: DeviceMesh | None


class Net(nn.Module):
    """Ten rows over three or four ranks do not divide; three rows over four leave one without any."""

    def __init__(self, layers: tuple[str, ...] = LAYERS) -> None:
        super().__init__()
        sizes = {"a": (6, 10), "b": (10, 10), "c": (10, 3)}
        self.layers = nn.ModuleDict({name: nn.Linear(*sizes[name]) for name in layers})
        self.seen = Seen()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            value = torch.tanh(layer(value))
        return self.seen(value)


class Seen(nn.Module):
    """A buffer that is state and one that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def reset_parameters(self) -> None:
        self.calls.zero_()

    def reset_buffers(self) -> None:
        self.table = torch.arange(3.0, dtype=torch.float64) + 1

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return value * self.table


def build(world: World) -> Parts:
    kind, mesh = world.kind, world.mesh
    layers = LAYERS
    if kind.name == "pp":
        layers = (LAYERS[:2], LAYERS[2:])[world.rank // kind.mesh[1]]
    model = Net(layers).double()
    if kind.name in ("tp", "fsdp_tp"):
        assert mesh is not None
        parallelize_module(
            model,
            mesh["tp"] if kind.name == "fsdp_tp" else mesh,
            {"layers.a": ColwiseParallel(), "layers.b": RowwiseParallel()},
        )
    if kind.name in ("fsdp", "hsdp", "fsdp_tp", "pp"):
        assert mesh is not None
        over = mesh["dp"] if kind.name in ("fsdp_tp", "pp") else mesh
        for layer in model.layers.values():
            fully_shard(layer, mesh=over)
        fully_shard(model, mesh=over)
    optimizer: torch.optim.Optimizer
    if kind.optimizer == "adam":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2, 2], gamma=0.5)
    wrap: Callable[[nn.Module], nn.Module] | None = None
    if kind.name == "ddp":
        assert mesh is not None
        group = mesh.get_group()
        wrap = lambda bare: DistributedDataParallel(bare, process_group=group, init_sync=False)  # noqa: E731
    return Parts(model, optimizer, schedule, wrap=wrap)


def transition(rank: int, old: Kind, new: Kind, steps: int) -> None:
    """One rank of four."""
    _in_a_group(lambda: _transition(rank, old, new, steps))


def buffers(rank: int) -> None:
    """One rank of two."""
    _in_a_group(lambda: _buffers(rank))


def _in_a_group(body: Callable[[], None]) -> None:
    """A DDP module that outlives its process group can hang when it is freed: it goes first, with `body`'s locals."""
    dist.init_process_group("gloo")
    body()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _transition(rank: int, old: Kind, new: Kind, steps: int) -> None:
    """Every assertion is made on every rank that can see what it is about."""
    before, after = _world(old, rank), _world(new, rank)
    reference = construct(build, World(Kind("plain", (1,), old.optimizer), 0, None))
    start(reference, 7, 0, CPU)
    exact = {old.name, new.name} <= {"ddp"}

    parts = construct(build, before) if rank in old.ranks else None
    if parts is not None:
        start(parts, 7, rank, CPU)
    first = _gathered(parts, rank, old)
    _compare(first[1], _single(reference), 0.0)
    for step in range(steps):
        _step(reference, step, old, None)
        _step(parts, step, old, before)
    mine, state, captures = _gathered(parts, rank, old)
    _compare(state, _single(reference), 0.0 if exact else 1e-12)
    _check_layout(old, [one.described for one in captures])
    if mine is not None:
        _check_views(parts, mine)

    fresh = construct(build, after) if rank in new.ranks else None
    _fill(fresh, rank, captures, state)
    _, carried, again = _gathered(fresh, rank, new)
    _compare(carried, state, 0.0)
    assert carried[1].values == state[1].values
    assert {name: opt.state for name, opt in carried[1].optimizers.items()} == {
        name: opt.state for name, opt in state[1].optimizers.items()
    }
    _check_layout(new, [one.described for one in again])
    _step(reference, steps, new, None)
    _step(fresh, steps, new, after)
    _compare(_gathered(fresh, rank, new)[1], _single(reference), 0.0 if exact else 1e-12)


def _world(kind: Kind, rank: int) -> World:
    names = {"fsdp_tp": ("dp", "tp"), "pp": ("pp", "dp"), "hsdp": ("replicas", "shards")}.get(kind.name, ("dp",))
    mesh = DeviceMesh("cpu", torch.arange(len(kind.ranks)).view(kind.mesh), mesh_dim_names=names)
    return World(kind, rank, mesh)


def _step(parts: Parts | None, step: int, kind: Kind, world: World | None) -> None:
    """One step on the same samples everywhere. A pipeline's stages get made-up gradients: they have no engine here."""
    if parts is None:
        return
    assert parts.optimizer is not None and parts.scheduler is not None
    parts.optimizer.zero_grad()
    generator = torch.Generator().manual_seed(step)
    if kind.name == "pp":
        _made_up_gradients(parts.model, step)
    else:
        value = torch.randn(5, 6, dtype=torch.float64, generator=generator)
        parts.model(value).square().mean().backward()
    parts.optimizer.step()
    parts.scheduler.step()  # type: ignore[attr-defined]


def _made_up_gradients(model: nn.Module, step: int) -> None:
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(step * 1000 + sum(name.encode()))
        full = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        if isinstance(parameter, DTensor):
            rows = parameter.device_mesh.get_local_rank()
            chunks = list(full.chunk(parameter.device_mesh.size()))
            local = chunks[rows] if rows < len(chunks) else full[:0]
            full = DTensor.from_local(
                local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )
        parameter.grad = full


def _gathered(parts: Parts | None, rank: int, kind: Kind) -> tuple[Captured | None, FULL, list[Captured]]:
    """This rank's capture, the whole state put together from all boxes, and all captures, on every rank."""
    mine = capture(parts.objects(), rank) if parts is not None else None
    everyone: list[tuple[bytes, dict[tuple[str, Box], torch.Tensor]] | None] = [None] * dist.get_world_size()
    message = (
        None if mine is None else (msgspec.json.encode(mine.described), {k: v.clone() for k, v in mine.local.items()})
    )
    dist.all_gather_object(everyone, message)
    captures = [Captured(msgspec.json.decode(one[0], type=Described), one[1]) for one in everyone if one is not None]
    assert len(captures) == len(kind.ranks)
    return mine, (_assembled(captures), known(one.described for one in captures)), captures


def _single(parts: Parts) -> FULL:
    found = capture(parts.objects(), 0)
    return _assembled([found]), known([found.described])


def _assembled(captures: list[Captured]) -> dict[str, torch.Tensor]:
    """Whole tensors; fails if boxes leave anything out, or replicas differ."""
    there = known(one.described for one in captures)
    full: dict[str, torch.Tensor] = {}
    for name, tensor in there.tensors.items():
        whole = torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype))
        covered = torch.zeros(tensor.shape, dtype=torch.bool)
        for one in captures:
            for (held, box), local in one.local.items():
                if held != name:
                    continue
                assert tuple(local.shape) == box.size
                place = _slices(box)
                assert torch.equal(torch.where(covered[place], whole[place], local), local), (
                    f"replicas of {name} differ"
                )
                whole[place], covered[place] = local, True
        assert bool(covered.all()), f"boxes of {name} leave something out"
        full[name] = whole
    return full


def _compare(one: FULL, other: FULL, tolerance: float) -> None:
    assert one[0].keys() == other[0].keys(), set(one[0]) ^ set(other[0])
    for name, value in one[0].items():
        if name != "model.seen.calls":  # the made-up steps of a pipeline do not count
            torch.testing.assert_close(value, other[0][name], rtol=tolerance, atol=tolerance, msg=f"{name} differs")


def _check_layout(kind: Kind, described: list[Described]) -> None:
    """One description of each kind of rank gives the layout that all of them give."""
    one_of_each = [described[0]]
    if kind.name == "pp":
        one_of_each.append(described[kind.mesh[1]])
    if kind.name == "fsdp_tp":
        one_of_each.append(described[1])  # what is not cut by tensor parallelism has a mesh per column
    assert layout(one_of_each, len(kind.ranks)) == layout(described, len(kind.ranks))
    for one in described:
        for name, boxes in layout(described, len(kind.ranks)).holds[one.rank].items():
            assert boxes == tuple(part.box for part in one.parts(name))


def _check_views(parts: Parts | None, mine: Captured) -> None:
    """Boxes are views of the live tensors, equal to what torch says the whole tensor has there."""
    assert parts is not None
    for name, parameter in parts.model.named_parameters():
        name = "model." + name.removeprefix("module.")
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for (held, box), view in mine.local.items():
            if held == name:
                assert view.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()
                assert torch.equal(view, full[_slices(box)])


def _fill(parts: Parts | None, rank: int, captures: list[Captured], state: FULL) -> None:
    full, old = state
    asked = wanted(parts, rank, old) if parts is not None else None
    everyone: list[Described | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, asked)
    new = [one for one in everyone if one is not None]
    assert unwanted(old, new) == []
    assert {name: (t.shape, t.dtype) for name, t in known(new).tensors.items()} == {
        name: (t.shape, t.dtype) for name, t in old.tensors.items()
    }
    if parts is None or asked is None:
        return
    asked = renamed(asked, old.aliases)
    supply = {
        (name, part.box): full[name][_slices(part.box)].clone() for name in asked.tensors for part in asked.parts(name)
    }
    given = {key: tensor.data_ptr() for key, tensor in supply.items()}
    fill(parts, asked, old, supply, CPU)
    assert supply == {}
    taken = capture(parts.objects(), rank).local
    for key in itertools.islice(given, 3):
        if taken[key].numel():
            assert taken[key].data_ptr() == given[key], f"{key} was copied"


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(box.offset, box.size, strict=True))


def _buffers(rank: int) -> None:
    """Two ranks of DDP with BatchNorm, each on its own samples: statistics differ until they are shared."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    model(torch.randn(5, 6, generator=torch.Generator().manual_seed(rank))).sum().backward()
    before = capture({"model": model}, rank).local
    means = [torch.empty(4), torch.empty(4)]
    dist.all_gather(means, before["model.1.running_mean", Box((0,), (4,))])
    assert not torch.equal(*means)

    share_buffers({"model": model})

    taken = capture({"model": model}, rank)
    assert taken.described.peers == (0, 1)
    assert torch.equal(taken.local["model.1.running_mean", Box((0,), (4,))], means[0])
    assert taken.local["model.1.num_batches_tracked", Box((), ())] == 1
