"""Reads files of transition cases: `{"cases": [...]}` or one case. Every fault names the file, the case and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.problem import Limits, Problem, problem
from slurm_elastic.migrate.spec import (
    DeviceSpec,
    Fault,
    Holds,
    Tensors,
    TensorSpec,
    converted,
    devices,
    groups,
    objective,
    read_json,
)


class OldRank(msgspec.Struct):
    device: str | None
    holds: Holds


class NewRank(msgspec.Struct):
    holds: Holds


class Old(msgspec.Struct):
    ranks: list[OldRank]


class New(msgspec.Struct):
    ranks: list[NewRank]
    groups: list[list[int]] | None = None


class LimitSpec(msgspec.Struct):
    chunk_bytes: int | None = None
    peak_extra_bytes: int | None = None


class Require(msgspec.Struct):
    balanced: bool | None = False
    near: bool | None = False


class CaseSpec(msgspec.Struct):
    tensors: dict[str, TensorSpec]
    devices: list[DeviceSpec]
    prev: Old
    curr: New
    objective: list[str | dict[str, Any]] | None = None
    limits: LimitSpec | None = None
    require: Require | None = None


def read_cases(path: Path, wanted: str | None = None) -> dict[str, Problem]:
    """The problems of a file by case id, in order; only `wanted` if given. UserMistake for any fault."""
    data = read_json(path)
    cases = data.get("cases", [data]) if isinstance(data, dict) else data
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UserMistake(f"{path}: cases: needs a list of cases", fix='give {"cases": [..]} or one case')
    out: dict[str, Problem] = {}
    for number, case in enumerate(cases):
        name = case.get("id")
        if not isinstance(name, str):
            raise UserMistake(f"{path}: cases[{number}].id: needs a name", fix="give every case an id")
        if name in out:
            raise UserMistake(f"{path}: case {name}: id: is there twice", fix="give every case an id of its own")
        if wanted is None or name == wanted:
            try:
                out[name] = read_case(case)
            except Fault as fault:
                raise UserMistake(f"{path}: case {name}: {fault}", fix="mend the case file") from fault
    if wanted is not None and wanted not in out:
        raise UserMistake(f"{path} has no case {wanted!r}", fix="`--case` takes the id of a case in the file")
    return out


def read_case(case: dict[str, Any]) -> Problem:
    """One case. Raises Fault with the key."""
    spec = converted(case, CaseSpec)
    tensors = Tensors(spec.tensors)
    places = devices(spec.devices)
    index = {device.id: k for k, device in enumerate(places)}
    old = []
    used: set[str] = set()
    for k, rank in enumerate(spec.prev.ranks):
        key = f"prev.ranks[{k}]"
        held = tensors.holdings(rank.holds, f"{key}.holds")
        if rank.device is not None and rank.device not in index:
            raise Fault(f"{key}.device", f"no device {rank.device!r}")
        if rank.device in used:
            raise Fault(f"{key}.device", f"device {rank.device!r} holds two ranks")
        if rank.device is not None:
            used.add(rank.device)
        old.append((-1 if rank.device is None else index[rank.device], held))
    new = [tensors.holdings(rank.holds, f"curr.ranks[{k}].holds") for k, rank in enumerate(spec.curr.ranks)]
    require = spec.require or Require()
    return problem(
        tensors.tensors,
        places,
        old,
        new,
        groups=groups(spec.curr.groups or (), len(new), "curr.groups"),
        objective=objective(["bytes"] if spec.objective is None else spec.objective),
        limits=limits(spec.limits or LimitSpec()),
        near=bool(require.near),
        balanced=bool(require.balanced),
    )


def limits(spec: LimitSpec) -> Limits:
    if spec.chunk_bytes is not None and spec.chunk_bytes < 1:
        raise Fault("limits.chunk_bytes", f"needs at least 1, not {spec.chunk_bytes}")
    if spec.peak_extra_bytes is not None and spec.peak_extra_bytes < 0:
        raise Fault("limits.peak_extra_bytes", f"needs at least 0, not {spec.peak_extra_bytes}")
    return Limits(spec.chunk_bytes, spec.peak_extra_bytes)
