"""The best host map among allowed pairs of rank and host, for bytes, inter and max_recv. Exact, rank by rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_elastic.migrate.assign import Mask, NoAssignment, assign
from slurm_elastic.migrate.boxes import Ints
from slurm_elastic.migrate.problem import Key, Problem
from slurm_elastic.migrate.stock import Stock


def best_allowed(s: Stock, keys: tuple[Key, ...], allowed: Mask | None) -> Ints:
    """Device of each rank. `allowed`: ranks x hosts, None for all. What keys leave open: a rank stays where it was."""
    mask = np.ones((s.problem.ranks, len(s.problem.hosts)), bool) if allowed is None else allowed
    if any(name == "max_recv" for key in keys for name, _ in key):
        return s.problem.hosts[_with_bottleneck(s, keys, mask)]
    return s.problem.hosts[assign([*(dense(s, key) for key in keys), strangeness(s.problem)], mask)]


def dense(s: Stock, key: Key) -> Ints:
    """A key's bytes and inter, ranks x hosts."""
    weights = dict(key)
    total = s.cost * weights.get("bytes", 0) + s.inter * weights.get("inter", 0)
    return s.per_rank(np.asarray(total, np.int64))


def strangeness(problem: Problem) -> Ints:
    """Ranks x hosts: 0 where a rank stays with the device of the old rank of its number, else 1."""
    out = np.ones((problem.ranks, len(problem.hosts)), np.int64)
    column = {int(d): k for k, d in enumerate(problem.hosts)}
    for rank, device in enumerate(problem.previous[: problem.ranks].tolist()):
        if device in column:
            out[rank, column[device]] = 0
    return out


def _with_bottleneck(s: Stock, keys: tuple[Key, ...], allowed: Mask) -> Ints:
    """max_recv is at most a threshold: for each threshold the rest is an assignment. The best of all thresholds."""
    at = next(k for k, key in enumerate(keys) if any(name == "max_recv" for name, _ in key))
    weight = dict(keys[at])["max_recv"]
    before = [dense(s, key) for key in keys[:at]]
    mixed = dense(s, keys[at])
    later = [dense(s, key) for key in keys[at + 1 :]]
    cost = s.per_rank(s.cost)
    levels = np.unique(cost[allowed])
    low = _first_level(before, cost, levels, allowed)
    rest = _extra_weights(keys[at + 1 :])
    floor = _total(mixed, assign([*before, mixed], allowed)) if cost.size else 0
    best: tuple[Any, Ints] | None = None
    for level in levels[low:].tolist():
        if best and floor + weight * level > best[0][0]:
            break
        columns = assign([*before, mixed, *later, strangeness(s.problem)], (cost <= level) & allowed)
        top = int(cost[np.arange(len(columns)), columns].max())
        tail = [_total(key, columns) + w * top for key, w in zip(later, rest, strict=True)]
        value = (_total(mixed, columns) + weight * top, *tail)
        if best is None or value < best[0]:
            best = (value, columns)
    return best[1] if best else np.zeros(0, np.int64)


def _extra_weights(keys: tuple[Key, ...]) -> list[int]:
    return [dict(key).get("max_recv", 0) for key in keys]


def _first_level(before: list[Ints], cost: Ints, levels: Ints, allowed: Mask) -> int:
    """The least threshold (index) that costs nothing in the keys before."""
    columns = assign(before, allowed) if before else None
    wanted = [_total(key, columns) for key in before if columns is not None]

    def good(level: int) -> bool:
        try:
            columns = assign(before or [np.zeros_like(cost)], (cost <= levels[level]) & allowed)
        except NoAssignment:
            return False
        return [_total(key, columns) for key in before] == wanted

    low, high = 0, max(0, len(levels) - 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    return low


def _total(matrix: Ints, columns: Ints) -> int:
    return int(matrix[np.arange(len(columns)), columns].sum())
