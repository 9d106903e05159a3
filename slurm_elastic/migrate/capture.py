"""From live objects to what this rank holds: boxes of global tensors, as views, and a description to send to others.

Names are the user's name of the object and the name inside it: `model.layers.0.weight`,
`optimizer.layers.0.weight.exp_avg`. They are the same at every world size.

What counts as held: parameters and persistent buffers; each optimizer's state as it is (none before the first step:
nothing is made up); tensors in the state of other objects; and, if asked for, this rank's random generators, under
names of their own (`rng.cpu.3`). A plain tensor counts as whole and as equal on all `peers`; only DTensors are parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture_boxes import Cut, Part, Spread
from slurm_elastic.migrate.capture_layout import Described, Entry, Group, OptimizerValues, renamed
from slurm_elastic.migrate.capture_names import Objects, modules, places
from slurm_elastic.migrate.capture_values import separate
from slurm_elastic.migrate.model import Box


@dataclass(frozen=True, slots=True)
class Captured:
    """What this rank holds, and the bytes of it: views of the live tensors, without a copy."""

    described: Described
    local: dict[tuple[str, Box], torch.Tensor]

    def renamed(self, aliases: Mapping[str, str]) -> Captured:
        """The same with tied tensors under the name that all use (`joined_aliases` of both sides)."""
        local = {(aliases.get(name, name), box): tensor for (name, box), tensor in self.local.items()}
        return Captured(renamed(self.described, aliases), local)


@dataclass(slots=True)
class Notes:
    """A description while it is being made, with the local tensor of each name."""

    rank: int
    peers: set[int]
    spreads: list[Spread] = field(default_factory=list)
    tensors: dict[str, Entry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    local: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    optimizers: dict[str, OptimizerValues] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor, *, is_private: bool = False) -> None:
        """One tensor of the state, whole or a part; a private one is no copy of anything that a peer holds."""
        private = Spread((self.rank,), (1,), (None,))
        index = self.index_of(private) if is_private else self.spread_of(name, tensor)
        self.tensors[name] = Entry(tuple(tensor.shape), dtype_name(tensor.dtype), index)
        self.local[name] = local_of(tensor)

    def spread_of(self, name: str, tensor: torch.Tensor) -> int | None:
        """Index of how a tensor is spread; None for a plain one."""
        spread = spread_of(name, tensor)
        return None if spread is None else self.index_of(spread)

    def index_of(self, spread: Spread) -> int:
        self.peers.update(spread.ranks)
        if spread not in self.spreads:
            self.spreads.append(spread)
        return self.spreads.index(spread)

    def described(self) -> Described:
        return Described(
            rank=self.rank,
            peers=tuple(sorted(self.peers)),
            spreads=tuple(self.spreads),
            tensors=self.tensors,
            aliases=self.aliases,
            values=self.values,
            optimizers=self.optimizers,
        )


def capture(objects: Mapping[str, object], rank: int, *, peers: Iterable[int] = (), with_rng: bool = False) -> Captured:
    """Everything that `rank` holds. Not collective; changes nothing.

    `peers`: ranks that hold equal copies of this rank's plain tensors, as far as neither DDP nor a device mesh in
    the objects says so. Raises UserMistake for state that cannot be told apart into parts of global tensors.
    """
    found = Objects(objects)
    notes = note_models(found, rank, peers)
    for name in found.optimizers:
        _note_optimizer(notes, found, name)
    for name, other in found.others.items():
        tensors: dict[str, torch.Tensor] = {}
        notes.values[name] = separate(other.state_dict(), name, tensors)
        for path, tensor in tensors.items():
            notes.add(path, tensor)
    if with_rng:
        for kind, state in rng_states().items():
            notes.add(rng_name(kind, rank), state, is_private=True)
    described = notes.described()
    return Captured(described, _views(described, notes.local))


def note_models(objects: Objects, rank: int, peers: Iterable[int] = ()) -> Notes:
    """Parameters and persistent buffers, tied ones once, under the smallest of their names. Works on meta tensors."""
    notes = Notes(rank, {rank, *peers})
    for own, model in objects.models.items():
        for _, module in modules(model):
            if isinstance(module, DistributedDataParallel):
                notes.peers.update(dist.get_process_group_ranks(module.process_group))
            if isinstance(module, FSDPModule):
                module.reshard()  # a forward pass without backward leaves whole parameters in place of the parts
        first: dict[int, str] = {}
        for name, place in sorted(places(model).items()):
            if not place.is_persistent:
                continue
            full = f"{own}.{name}"
            if id(place.tensor) in first:
                notes.aliases[full] = first[id(place.tensor)]
                continue
            first[id(place.tensor)] = full
            notes.add(full, place.tensor)
    return notes


def spread_of(name: str, tensor: torch.Tensor) -> Spread | None:
    """How a DTensor is spread over its mesh; None for a plain tensor."""
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh.mesh
    return Spread(
        ranks=tuple(mesh.flatten().tolist()),
        mesh=tuple(mesh.shape),
        cuts=tuple(_cut(name, placement) for placement in tensor.placements),
    )


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own part of a tensor, sharing its memory, outside autograd."""
    with torch.no_grad():
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def part_of(local: torch.Tensor, part: Part) -> torch.Tensor:
    """The view of a local tensor that is one box."""
    for dim, (start, size) in enumerate(zip(part.local, part.box.size, strict=True)):
        local = local.narrow(dim, start, size)
    return local


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rng_name(kind: str, rank: int) -> str:
    """Name of the state of a rank's random generator; a rank of a new world takes over that of the same number."""
    return f"rng.{kind}.{rank}"


def rng_states() -> dict[str, torch.Tensor]:
    """State of torch's generators of this process: the CPU's, and this process's CUDA device's once it is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _note_optimizer(notes: Notes, objects: Objects, own: str) -> None:
    optimizer = objects.optimizers[own]
    names = objects.names_of(own)
    groups = []
    plain_state: dict[str, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        held = tuple(names[id(parameter)][0] for parameter in group["params"])
        settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        tensors: dict[str, torch.Tensor] = {}
        path = f"{own}@{min(held, default='')}"
        groups.append(Group(held, {key: separate(value, f"{path}.{key}", tensors) for key, value in settings.items()}))
        for name, tensor in tensors.items():
            notes.add(name, tensor)
        for parameter in group["params"]:
            first, *tied = names[id(parameter)]
            for key, value in optimizer.state.get(parameter, {}).items():
                full = f"{own}.{first}.{key}"
                if isinstance(value, torch.Tensor):
                    _note_state(notes, full, value, parameter)
                    notes.aliases.update({f"{own}.{alias}.{key}": full for alias in tied})
                else:
                    plain_state.setdefault(first, {})[key] = separate(value, full, {})
    notes.optimizers[own] = OptimizerValues(tuple(groups), plain_state)


def _note_state(notes: Notes, name: str, value: torch.Tensor, parameter: torch.Tensor) -> None:
    """State beside a sharded parameter is a DTensor itself, one number, or of the shape of the local part."""
    if isinstance(value, DTensor) or not isinstance(parameter, DTensor) or (value.numel() == 1 and value.dim() == 0):
        notes.add(name, value)
        return
    if value.shape != parameter.to_local().shape:
        raise UserMistake(
            f"{name} is a plain tensor of shape {list(value.shape)} beside a sharded parameter: "
            "which part of it this rank holds cannot be known",
            fix="let the optimizer keep DTensors (torch.zeros_like(parameter)) or single numbers",
        )
    notes.tensors[name] = Entry(tuple(parameter.shape), dtype_name(value.dtype), notes.spread_of(name, parameter))
    notes.local[name] = value.detach()


def _views(described: Described, local: Mapping[str, torch.Tensor]) -> dict[tuple[str, Box], torch.Tensor]:
    views: dict[tuple[str, Box], torch.Tensor] = {}
    for name, tensor in local.items():
        expected = described.local_shape(name)
        if tensor.numel() and tuple(tensor.shape) != expected:
            raise UserMistake(
                f"{name} has {list(tensor.shape)} on rank {described.rank}, but its placements say {list(expected)}",
                fix="give placements that torch itself divides this way: Shard, or FSDP2 over tensor parallelism",
            )
        for part in described.parts(name):
            views[name, part.box] = part_of(tensor, part)
    return views


def _cut(name: str, placement: Placement) -> Cut | None:
    if isinstance(placement, _StridedShard):
        return Cut(placement.dim, int(placement.split_factor))
    if isinstance(placement, Shard):
        return Cut(placement.dim)
    if isinstance(placement, Replicate):
        return None
    raise UserMistake(f"{name} is a DTensor with the placement {placement}, which is no state", fix="reduce it first")
