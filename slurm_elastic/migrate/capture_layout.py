"""What a rank says of the state it holds, small enough to send to all, and the layout of all ranks made from that.

A rank describes how its tensors are spread, not only its own boxes. So one description stands for every rank of the
same mesh, and the layout of a planned world needs one description per kind of rank (for a pipeline: per stage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture_boxes import Part, Spread, local_shape, parts_at, parts_of_all, whole
from slurm_elastic.migrate.model import Box, Tensor

Holds = dict[str, tuple[Box, ...]]


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A tensor of the state; `spread`: index into the description's spreads, None where each rank has all of it."""

    shape: tuple[int, ...]
    dtype: str
    spread: int | None = None


class Group(msgspec.Struct, frozen=True, array_like=True):
    """One parameter group of an optimizer: names of its parameters, and its settings as plain values."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class OptimizerValues(msgspec.Struct, frozen=True, array_like=True):
    """What an optimizer knows besides tensors; `state`: by parameter, None-s and numbers among its state."""

    groups: tuple[Group, ...]
    state: dict[str, dict[str, Any]]


class Described(msgspec.Struct, frozen=True):
    """The state that `rank` holds, without its bytes. Equal tensors of `peers` have equal content.

    `aliases`: further names of tied tensors, by the name under which they are held. `values`: plain values of each
    object that is neither module nor optimizer; tensors among them are held by name (`capture_values`).
    """

    rank: int
    peers: tuple[int, ...]
    spreads: tuple[Spread, ...]
    tensors: dict[str, Entry]
    aliases: dict[str, str]
    values: dict[str, Any]
    optimizers: dict[str, OptimizerValues]

    def spread_of(self, name: str) -> Spread | None:
        index = self.tensors[name].spread
        return None if index is None else self.spreads[index]

    def parts(self, name: str) -> tuple[Part, ...]:
        """What this rank holds of a tensor, in the order of its local tensor."""
        entry, spread = self.tensors[name], self.spread_of(name)
        if spread is not None:
            return parts_at(entry.shape, spread, self.rank)
        return () if 0 in entry.shape else (Part(whole(entry.shape), (0,) * len(entry.shape)),)

    def local_shape(self, name: str) -> tuple[int, ...]:
        return local_shape(self.tensors[name].shape, self.spread_of(name), self.rank)


class Known(msgspec.Struct, frozen=True):
    """What there is of a state, all ranks together."""

    tensors: dict[str, Tensor]
    aliases: dict[str, str]
    values: dict[str, Any]
    optimizers: dict[str, OptimizerValues]

    def canonical(self, name: str) -> str:
        """The name under which a tensor is held."""
        return self.aliases.get(name, name)


class Layout(msgspec.Struct, frozen=True):
    """All tensors, and what each rank holds of them, by rank. Tied tensors appear once, under one name."""

    tensors: dict[str, Tensor]
    holds: tuple[Holds, ...]


def known(described: Iterable[Described]) -> Known:
    """Join what ranks say. Raises UserMistake when two of them disagree about a tensor's shape or type."""
    ordered = _distinct(described)
    aliases = joined_aliases(one.aliases for one in ordered)
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for one in ordered:
        for name, entry in one.tensors.items():
            found = Tensor(entry.shape, entry.dtype)
            before = tensors.setdefault(aliases.get(name, name), found)
            if before != found:
                raise UserMistake(
                    f"rank {one.rank} holds {name} as {_shown(found)}, another rank as {_shown(before)}",
                    fix="give different tensors different names on all ranks",
                )
        for name, value in one.values.items():
            values.setdefault(name, value)
    return Known(tensors, aliases, values, _joined_optimizers(ordered))


def layout(described: Iterable[Described], world: int, aliases: Mapping[str, str] | None = None) -> Layout:
    """The layout of ranks 0 to `world` - 1. Descriptions of some ranks are enough where they speak for the others.

    `aliases`: further tied names, such as those of the layout on the other side of a transition.
    """
    ordered = _distinct(described)
    tied = joined_aliases([*(one.aliases for one in ordered), aliases or {}])
    holds: list[Holds] = [{} for _ in range(world)]
    made: dict[tuple[tuple[int, ...], Spread], list[tuple[int, tuple[Box, ...]]]] = {}
    for one in ordered:
        for name, entry in one.tensors.items():
            held = tied.get(name, name)
            for rank, boxes in _boxes_of_all(one, name, entry, made):
                if boxes:
                    holds[rank].setdefault(held, boxes)
    tensors = {tied.get(name, name): tensor for name, tensor in known(ordered).tensors.items()}
    return Layout(tensors, tuple(holds))


def joined_aliases(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One map from every tied name to the name that all use, whatever chains there are among `several`."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.get(name, name) != name:
            name = root[name]
        return name

    for aliases in several:
        for alias, name in sorted(aliases.items()):
            one, other = sorted((find(alias), find(name)))
            root[other] = one
    return {name: find(name) for name in sorted(root) if find(name) != name}


def renamed(one: Described, aliases: Mapping[str, str]) -> Described:
    """The same description with tied tensors under the name that all use."""
    tensors = {aliases.get(name, name): entry for name, entry in one.tensors.items()}
    return msgspec.structs.replace(one, tensors=tensors, aliases=joined_aliases([one.aliases, aliases]))


def _boxes_of_all(
    one: Described,
    name: str,
    entry: Entry,
    made: dict[tuple[tuple[int, ...], Spread], list[tuple[int, tuple[Box, ...]]]],
) -> list[tuple[int, tuple[Box, ...]]]:
    spread = one.spread_of(name)
    if spread is None:
        boxes = tuple(part.box for part in one.parts(name))
        return [(rank, boxes) for rank in one.peers]
    key = (entry.shape, spread)
    if key not in made:
        held = parts_of_all(entry.shape, spread)
        made[key] = [(rank, tuple(part.box for part in parts)) for rank, parts in held.items()]
    return made[key]


def _distinct(described: Iterable[Described]) -> list[Described]:
    """By rank, without those that say the same as one before: most of a large world."""
    kinds: dict[bytes, Described] = {}
    for one in sorted(described, key=lambda one: one.rank):
        kinds.setdefault(msgspec.msgpack.encode(msgspec.structs.replace(one, rank=0)), one)
    return list(kinds.values())


def _joined_optimizers(ordered: list[Described]) -> dict[str, OptimizerValues]:
    joined: dict[str, OptimizerValues] = {}
    for one in ordered:
        for name, found in one.optimizers.items():
            before = joined.get(name, OptimizerValues((), {}))
            new = tuple(group for group in found.groups if group not in before.groups)
            joined[name] = OptimizerValues((*before.groups, *new), found.state | before.state)
    return joined


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"
