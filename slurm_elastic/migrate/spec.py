"""State as JSON files describe it: tensors, devices and holdings, checked, with the key of every fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.boxes import elements, intersection, overlaps, table
from slurm_elastic.migrate.model import ITEMSIZE, Box, Device, DeviceState, Tensor
from slurm_elastic.migrate.problem import KEYS, Key

T = TypeVar("T")
FEW = 32  # boxes of one name on one rank that are compared one by one


class TensorSpec(msgspec.Struct):
    shape: list[int] | None = None
    dtype: str | None = None
    alias_of: str | None = None


class DeviceSpec(msgspec.Struct):
    id: str
    node: str
    state: DeviceState = "up"


Holds = dict[str, list[tuple[list[int], list[int]]]]


class Fault(Exception):
    """`key` of the file has a value that makes no sense; `why`."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")


def read_json(path: Path) -> Any:
    """The file's JSON value; UserMistake when there is none."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserMistake(f"cannot read {path}: {error.strerror}", fix="give a file that is there") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserMistake(f"{path} is not JSON: {error}", fix="see docs/plan.md for the format") from error


def converted(value: Any, kind: type[T]) -> T:
    """`value` as a struct. Raises Fault with the key's path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `")
        raise Fault(where.rstrip("`").removeprefix("$").removeprefix(".") or "value", why.replace("`", "")) from error


class Tensors:
    """Canonical tensors, and the canonical name of each name."""

    def __init__(self, spec: Mapping[str, TensorSpec]) -> None:
        self.canonical: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, each in spec.items():
            if each.alias_of is None:
                self.tensors[name] = _tensor(name, each)
                self.canonical[name] = name
        for name, each in spec.items():
            if each.alias_of is not None:
                if each.alias_of not in self.tensors:
                    raise Fault(f"tensors.{name}.alias_of", f"{each.alias_of!r} is no tensor with a shape of its own")
                self.canonical[name] = each.alias_of

    def holdings(self, holds: Holds, where: str) -> dict[str, list[Box]]:
        """Boxes by canonical name. A box held under two tied names is one."""
        out: dict[str, list[Box]] = {}
        for name, pairs in holds.items():
            key = f"{where}.{name}"
            if name not in self.canonical:
                raise Fault(key, "no such tensor")
            shape = self.tensors[self.canonical[name]].shape
            boxes = [_box(pair, shape, f"{key}[{k}]") for k, pair in enumerate(pairs)]
            _check_disjoint(boxes, len(shape), key)
            out.setdefault(self.canonical[name], []).extend(boxes)
        return out


def _tensor(name: str, spec: TensorSpec) -> Tensor:
    if spec.shape is None or spec.dtype is None:
        raise Fault(f"tensors.{name}", "needs shape and dtype, or alias_of")
    if spec.dtype not in ITEMSIZE:
        raise Fault(f"tensors.{name}.dtype", f"unknown: {spec.dtype!r}; there are {', '.join(ITEMSIZE)}")
    if any(n < 0 for n in spec.shape):
        raise Fault(f"tensors.{name}.shape", f"negative size in {spec.shape}")
    if elements(spec.shape) >= 2**53:
        raise Fault(f"tensors.{name}.shape", f"{spec.shape} has too many elements")
    return Tensor(tuple(spec.shape), spec.dtype)


def _box(pair: tuple[list[int], list[int]], shape: Sequence[int], key: str) -> Box:
    offset, size = pair
    if len(offset) != len(shape) or len(size) != len(shape):
        raise Fault(key, f"a box in {len(shape)} dimensions needs as many offsets and sizes")
    if any(o < 0 or s < 0 or o + s > n for o, s, n in zip(offset, size, shape, strict=True)):
        raise Fault(key, f"offset {offset} size {size} is outside of shape {list(shape)}")
    return Box(tuple(offset), tuple(size))


def _check_disjoint(boxes: Sequence[Box], dimensions: int, key: str) -> None:
    solid = [box for box in boxes if elements(box.size)]
    if len(solid) <= FEW:
        clash = any(intersection(a, b) for k, a in enumerate(solid) for b in solid[:k])
    else:
        rows = [(0, o, [x + n for x, n in zip(o, s, strict=True)], ()) for o, s in solid]
        t = table(rows, dimensions)
        clash = len(overlaps(t, t).a) != len(solid)
    if clash:
        raise Fault(key, "boxes of one name on one rank overlap")


def devices(spec: Sequence[DeviceSpec], key: str = "devices") -> list[Device]:
    """Devices in order; ids differ."""
    seen: set[str] = set()
    for k, each in enumerate(spec):
        if each.id in seen:
            raise Fault(f"{key}[{k}].id", f"{each.id!r} is there twice")
        seen.add(each.id)
    return [Device(each.id, each.node, each.state) for each in spec]


def objective(entries: Sequence[str | Mapping[str, Any]], key: str = "objective") -> tuple[Key, ...]:
    """Entries in order of importance: a measure, or {"weights": {measure: integer}}."""
    out: list[Key] = []
    for k, entry in enumerate(entries):
        weights = {entry: 1} if isinstance(entry, str) else entry.get("weights")
        if not isinstance(weights, Mapping):
            raise Fault(f"{key}[{k}]", 'needs a measure or {"weights": {measure: integer}}')
        for name, weight in weights.items():
            if name not in KEYS:
                raise Fault(f"{key}[{k}]", f"unknown measure {name!r}; there are {', '.join(KEYS)}")
            if type(weight) is not int or not 0 <= weight < 2**40:
                raise Fault(f"{key}[{k}].weights.{name}", f"needs a whole number from 0, not {weight!r}")
        out.append(tuple(sorted(weights.items())))
    if not out or len(set(out)) != len(out):
        raise Fault(key, "needs at least one entry, and all different")
    return tuple(out)


def groups(spec: Sequence[Sequence[int]], ranks: int, key: str) -> tuple[tuple[int, ...], ...]:
    """Disjoint lists of new ranks."""
    members = [rank for group in spec for rank in group]
    if len(set(members)) != len(members):
        raise Fault(key, "a rank is in two groups")
    if any(not 0 <= rank < ranks for rank in members):
        raise Fault(key, f"ranks are 0 to {ranks - 1}")
    return tuple(tuple(group) for group in spec)
