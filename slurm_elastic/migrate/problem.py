"""What a transition starts from, compactly: tensors that are cut and owned alike are one pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from slurm_elastic.migrate.boxes import Ints, Table, elements, ints, table
from slurm_elastic.migrate.model import ITEMSIZE, Box, Device, Tensor

Key = tuple[tuple[str, int], ...]  # one entry of an objective: (measure, weight), ...
Holdings = Mapping[str, Iterable[Box]]  # canonical tensor -> boxes
KEYS = ("bytes", "inter", "max_recv", "span", "nodes")
PLAIN: tuple[Key, ...] = ((("bytes", 1),),)


@dataclass(frozen=True)
class Pattern:
    """Tensors of equal shape, item size, cuts and owners, by name."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    item: int

    @property
    def weight(self) -> int:
        """Bytes of one element of each."""
        return self.item * len(self.names)


@dataclass(frozen=True)
class Limits:
    """`chunk`: bytes out, and bytes in, per device and step. `peak_extra`: allowed above max(before, after)."""

    chunk: int | None = None
    peak_extra: int | None = None


@dataclass(frozen=True)
class Problem:
    """Two layouts and where the new one may live.

    `old`: stored boxes with the live devices (index) that hold them; `new`: boxes to be stored, with the new ranks.
    `previous`: per old rank its device (index), or -1.
    """

    patterns: tuple[Pattern, ...]
    devices: tuple[Device, ...]
    ranks: int
    old: Table
    new: Table
    previous: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    groups: tuple[tuple[int, ...], ...] = ()
    objective: tuple[Key, ...] = PLAIN
    limits: Limits = Limits()
    near: bool = False
    balanced: bool = False

    @cached_property
    def hosts(self) -> Ints:
        """Devices that may host, in order."""
        return ints(k for k, device in enumerate(self.devices) if device.state == "up")

    @cached_property
    def nodes(self) -> Ints:
        """Per device the number of its node, counted in order of first appearance."""
        number: dict[str, int] = {}
        return ints(number.setdefault(device.node, len(number)) for device in self.devices)

    @cached_property
    def weight(self) -> Ints:
        """Per pattern, bytes of one element of each tensor."""
        return ints(pattern.weight for pattern in self.patterns)


def problem(
    tensors: Mapping[str, Tensor],
    devices: Sequence[Device],
    old: Sequence[tuple[int, Holdings]],
    new: Sequence[Holdings],
    **more: object,
) -> Problem:
    """From holdings by canonical tensor name: `old` as (device index, or -1 for lost state; holdings), `new` per rank.

    Equal input gives an equal problem, whatever the order of dicts and boxes.
    """
    live = [(d, h) for d, h in old if d >= 0 and devices[d].state != "dead"]
    before, after = _by_tensor(live), _by_tensor(enumerate(new))
    alike: dict[object, list[str]] = {}
    for name in sorted(tensors):
        t = tensors[name]
        if name in before or name in after:
            key = (tuple(t.shape), ITEMSIZE[t.dtype], before.get(name, ()), after.get(name, ()))
            alike.setdefault(key, []).append(name)
    patterns = tuple(
        Pattern(tuple(names), tuple(tensors[names[0]].shape), ITEMSIZE[tensors[names[0]].dtype])
        for names in alike.values()
    )
    widest = max((len(p.shape) for p in patterns), default=1)
    return Problem(
        patterns,
        tuple(devices),
        len(new),
        _stored([before.get(p.names[0], ()) for p in patterns], widest),
        _stored([after.get(p.names[0], ()) for p in patterns], widest),
        ints(d for d, _ in old),
        **more,  # type: ignore[arg-type]
    )


Owned = tuple[tuple[int, tuple[Box, ...]], ...]  # (owner, its boxes), ...


def _by_tensor(holdings: Iterable[tuple[int, Holdings]]) -> dict[str, Owned]:
    found: dict[str, list[tuple[int, tuple[Box, ...]]]] = {}
    for owner, held in sorted(holdings, key=lambda pair: pair[0]):
        for name, boxes in held.items():
            solid = tuple(sorted({box for box in boxes if elements(box.size)}))
            if solid:
                found.setdefault(name, []).append((owner, solid))
    return {name: tuple(owned) for name, owned in found.items()}


def _stored(owned: Sequence[Owned], dimensions: int) -> Table:
    rows = []
    for pattern, each in enumerate(owned):
        owners: dict[Box, list[int]] = {}
        for owner, boxes in each:
            for box in boxes:
                owners.setdefault(box, []).append(owner)
        for box in sorted(owners):
            high = [o + s for o, s in zip(*box, strict=True)]
            rows.append((pattern, box.offset, high, owners[box]))
    return table(rows, dimensions)
