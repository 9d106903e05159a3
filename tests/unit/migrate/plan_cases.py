"""Random transition cases of many kinds, from a seed. Small: they are judged element by element."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

DTYPES = ("float64", "complex128", "float32", "bfloat16", "int8", "int64", "bool", "float8_e4m3fn", "uint16")
MIXES: tuple[list[Any], ...] = (
    ["bytes"],
    ["inter", "bytes"],
    ["bytes", "inter"],
    ["nodes", "bytes"],
    ["span", "nodes", "bytes"],
    ["bytes", "nodes"],
    ["span", "bytes", "inter"],
    ["bytes", "max_recv"],
    ["max_recv", "bytes"],
    ["span", "max_recv"],
    ["inter", "max_recv", "bytes"],
    ["nodes", "span", "max_recv", "inter", "bytes"],
    [{"weights": {"bytes": 1, "nodes": 20, "span": 7}}],
    [{"weights": {"bytes": 2, "inter": 3}}, "nodes"],
    [{"weights": {"bytes": 1, "max_recv": 3}}, "inter"],
    ["bytes", {"weights": {"max_recv": 1, "inter": 2}}],
    [{"weights": {"bytes": 0, "nodes": 1}}, "bytes"],
)
Holds = dict[str, list[Any]]


def random_case(seed: int, most_devices: int = 5) -> dict[str, Any]:
    """A valid case: scalars, empty tensors and ranks, tied names, dead and leaving devices, unequal nodes and cuts."""
    rng = Random(seed)
    tensors = _tensors(rng)
    devices = [_device(rng, k) for k in range(rng.randint(1, most_devices))]
    rng.shuffle(devices)
    before = rng.randint(0 if rng.random() < 0.1 else 1, len(devices))
    places = [d["id"] if rng.random() < 0.93 else None for d in rng.sample(devices, before)]
    prev = [{"device": d, "holds": h} for d, h in zip(places, layout(rng, tensors, before), strict=True)]
    after = _ranks(rng, devices)
    if rng.random() < 0.8:  # one that holds all
        devices.append({"id": "src", "node": rng.choice(["nx", "n0"]), "state": rng.choice(["leaving", "up"])})
        prev.append({"device": "src", "holds": {n: [whole(t)] for n, t in tensors.items() if "shape" in t}})
    curr = layout(rng, tensors, after)
    if before == after and rng.random() < 0.2:
        curr = [rank["holds"] for rank in prev[:after]]
        rng.shuffle(curr)
    case = {
        "id": f"r{seed}",
        "tensors": tensors,
        "devices": devices,
        "prev": {"ranks": prev},
        "curr": {"ranks": [{"holds": h} for h in curr], "groups": _groups(rng, after)},
        "objective": rng.choice(MIXES),
        "require": {"balanced": rng.random() < 0.6, "near": rng.random() < 0.5},
    }
    if rng.random() < 0.6:
        case["limits"] = {"chunk_bytes": rng.choice([16, 16, 17, 24, 33, 64])}
    return case


def whole(tensor: dict[str, Any]) -> list[list[int]]:
    return [[0] * len(tensor["shape"]), list(tensor["shape"])]


def _tensors(rng: Random) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for k in range(rng.randint(1, 5)):
        shape = [rng.randint(0 if rng.random() < 0.2 else 1, 6) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))]
        out[f"{rng.choice('abcxyz')}{k}"] = {"shape": shape, "dtype": rng.choice(DTYPES)}
    if rng.random() < 0.3:
        out["tied"] = {"alias_of": rng.choice(list(out))}
    return out


def _device(rng: Random, k: int) -> dict[str, str]:
    state = rng.choices(["up", "leaving", "dead"], [6, 1, 1])[0]
    return {"id": f"d{k}", "node": f"n{rng.randrange(3)}", "state": state}


def _ranks(rng: Random, devices: list[dict[str, str]]) -> int:
    ranks = rng.randint(0 if rng.random() < 0.05 else 1, len(devices))
    return min(ranks, sum(d["state"] == "up" for d in devices)) if rng.random() < 0.9 else ranks


def _groups(rng: Random, ranks: int) -> list[list[int]]:
    count = rng.randint(0, 3)
    members = list(range(ranks))
    rng.shuffle(members)
    groups = [members[j::count] for j in range(count)]
    return groups[:-1] if groups and rng.random() < 0.3 else groups


def layout(rng: Random, tensors: dict[str, Any], ranks: int) -> list[Holds]:
    """What `ranks` ranks hold: replicated, sharded, gridded, owned by one, or just anything."""
    out: list[Holds] = [{} for _ in range(ranks)]
    style = rng.choice(["free", "dp", "fsdp", "grid", "mixed", "mixed"])
    for name, tensor in tensors.items() if ranks else ():
        if "shape" not in tensor:
            continue
        mine = rng.choice(["free", "dp", "fsdp", "grid", "pp"]) if style == "mixed" else style
        if mine == "dp":
            for rank in out:
                rank[name] = [whole(tensor)]
        elif mine == "pp":
            rng.choice(out)[name] = [whole(tensor)]
        elif mine in ("fsdp", "grid") and tensor["shape"]:
            _shard(rng, out, name, tensor["shape"], grid=mine == "grid")
        else:
            _anything(rng, out, name, tensor["shape"])
    for name, tensor in tensors.items():
        if "alias_of" in tensor:
            _tie(rng, out, name, tensor["alias_of"], tensors[tensor["alias_of"]]["shape"])
    return out


def _cuts(rng: Random, size: int, parts: int) -> list[tuple[int, int]]:
    if rng.random() < 0.4:
        step = -(-size // parts)
        edges = [min(size, step * k) for k in range(parts + 1)]
    else:
        edges = sorted([0, size, *(rng.randint(0, size) for _ in range(parts - 1))])
    return list(pairwise(edges))


def _shard(rng: Random, out: list[Holds], name: str, shape: list[int], *, grid: bool) -> None:
    copies = rng.choice([1, 1, 2]) if len(out) > 1 else 1
    shards = max(1, len(out) // copies)
    axis = rng.randrange(len(shape))
    cuts = _cuts(rng, shape[axis], shards)
    for k, rank in enumerate(out):
        offset, size = [0] * len(shape), list(shape)
        offset[axis], size[axis] = cuts[k % shards][0], cuts[k % shards][1] - cuts[k % shards][0]
        rank[name] = [[offset, size]]
        if grid and len(shape) > 1:
            other = (axis + 1) % len(shape)
            rank[name] = []
            for low, high in _cuts(rng, shape[other], 3):
                if rng.random() < 0.6:
                    o, s = list(offset), list(size)
                    o[other], s[other] = low, high - low
                    rank[name].append([o, s])


def _anything(rng: Random, out: list[Holds], name: str, shape: list[int]) -> None:
    for rank in out:
        if rng.random() < 0.7:
            offset = [rng.randint(0, n) for n in shape]
            size = [rng.randint(0, n - o) for n, o in zip(shape, offset, strict=True)]
            if rng.random() < 0.5:
                offset, size = [0] * len(shape), list(shape)
            rank[name] = [[offset, size]]
            if shape and shape[0] >= 2 and rng.random() < 0.3:
                cut = rng.randint(1, shape[0] - 1)
                rest = [[cut, *offset[1:]], [rng.randint(0, shape[0] - cut), *size[1:]]]
                rank[name] = [[[0, *offset[1:]], [cut, *size[1:]]], rest]


def _tie(rng: Random, out: list[Holds], name: str, original: str, shape: list[int]) -> None:
    for rank in out:
        chance = rng.random()
        if original in rank and chance < 0.3:
            rank[name] = rank.pop(original)
        elif original in rank and chance < 0.5:
            rank[name] = [list(map(list, box)) for box in rank[original]]
        elif chance < 0.65:
            offset = [rng.randint(0, n) for n in shape]
            rank[name] = [[offset, [rng.randint(0, n - o) for n, o in zip(shape, offset, strict=True)]]]
