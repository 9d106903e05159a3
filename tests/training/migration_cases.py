"""Cases and plans of state movement as this device's boxes: made from names, so that every process makes them alone."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from slurm_elastic.migrate.model import Box, Plan, Tensor
from slurm_elastic.migrate.store import Key

CASES = Path(__file__).parents[3] / "shared" / "migration-cases" / "public.json"


@dataclass(frozen=True)
class Case:
    """`old`: by device, `new`: by new rank. Tied names are resolved."""

    id: str
    tensors: dict[str, Tensor]
    devices: tuple[str, ...]
    old: dict[str, tuple[Key, ...]]
    new: tuple[tuple[Key, ...], ...]

    def new_of(self, plan: Plan, device: str) -> tuple[Key, ...]:
        return self.new[plan.host.index(device)] if device in plan.host else ()


def read_case(raw: dict[str, Any]) -> Case:
    canonical = {name: entry.get("alias_of", name) for name, entry in raw["tensors"].items()}

    def keys(holds: dict[str, Any]) -> tuple[Key, ...]:
        found = ((canonical[n], Box(tuple(o), tuple(s))) for n, boxes in holds.items() for o, s in boxes)
        return tuple(dict.fromkeys(found))

    tensors = {n: Tensor(tuple(e["shape"]), e["dtype"]) for n, e in raw["tensors"].items() if "alias_of" not in e}
    dead = {device["id"] for device in raw["devices"] if device["state"] == "dead"}
    ranks = [rank for rank in raw["prev"]["ranks"] if rank["device"] and rank["device"] not in dead]
    return Case(
        raw["id"],
        tensors,
        tuple(device["id"] for device in raw["devices"]),
        {rank["device"]: keys(rank["holds"]) for rank in ranks},
        tuple(keys(rank["holds"]) for rank in raw["curr"]["ranks"]),
    )


def read_plan(raw: dict[str, Any]) -> Plan:
    return msgspec.convert(raw, Plan)


@functools.lru_cache(maxsize=64)
def truth(name: str, tensor: Tensor) -> torch.Tensor:
    """The global tensor: arbitrary bits, so NaN and infinities too."""
    dtype = getattr(torch, tensor.dtype)
    width = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    most = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, most, (math.prod(tensor.shape), width), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(tensor.shape)


def cut_out(whole: torch.Tensor, box: Box) -> torch.Tensor:
    """A copy of one box, with memory of its own."""
    return whole[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))].clone(memory_format=torch.contiguous_format)


def boxes_of(case: Case, keys: tuple[Key, ...]) -> dict[Key, torch.Tensor]:
    whole = {name: truth(name, case.tensors[name]) for name in {key[0] for key in keys}}
    return {key: cut_out(whole[key[0]], key[1]) for key in keys}


def load_oracle() -> Any:
    """The judge beside the cases."""
    spec = importlib.util.spec_from_file_location("oracle", CASES.with_name("oracle.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raw_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    return cases
