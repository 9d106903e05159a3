"""One order of tensors for all devices that keeps memory peaks low, and what each device stores before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_elastic.migrate.boxes import Ints, Table, elements
from slurm_elastic.migrate.model import Box
from slurm_elastic.migrate.problem import Problem

Stores = list[dict[int, list[Box]]]  # per pattern: device -> stored boxes


class Inventory(NamedTuple):
    """Stored boxes per pattern and device. `old` becomes free, `new` is allocated; `kept` is old and new at once.

    `before`, `after`: bytes per device.
    """

    old: Stores
    new: Stores
    kept: Stores
    before: Ints
    after: Ints


def inventory(p: Problem, host: Ints) -> Inventory:
    """What devices store under a host map."""
    old, new = _stores(p, p.old, np.arange(len(p.devices))), _stores(p, p.new, host)
    before, after = _bytes(p, old), _bytes(p, new)
    kept: Stores = []
    for k, mine in enumerate(new):
        both = {d: [b for b in boxes if b in set(old[k].get(d, ()))] for d, boxes in mine.items()}
        kept.append({d: boxes for d, boxes in both.items() if boxes})
        for d, boxes in kept[-1].items():
            gone = set(boxes)
            old[k][d] = [b for b in old[k][d] if b not in gone]
            new[k][d] = [b for b in new[k][d] if b not in gone]
    return Inventory(old, new, kept, before, after)


def in_place(p: Problem) -> Ints:
    """For each new rank the host that stores most of its boxes as they are to be stored, each host once; or -1."""
    boxes: dict[tuple[int, ...], list[int]] = {}
    key = np.hstack([p.old.pattern[:, None], p.old.lo, p.old.hi]).tolist()
    for k, box in enumerate(key):
        boxes[tuple(box)] = p.old.owners(k).tolist()
    size = p.new.elements * p.weight[p.new.pattern] if len(p.new) else p.new.elements
    same: dict[tuple[int, int], int] = {}
    for k, box in enumerate(np.hstack([p.new.pattern[:, None], p.new.lo, p.new.hi]).tolist()):
        for rank in p.new.owners(k).tolist():
            for device in boxes.get(tuple(box), ()):
                same[rank, device] = same.get((rank, device), 0) + int(size[k])
    out = np.full(p.ranks, -1)
    for rank, device in sorted(same, key=lambda pair: (-same[pair], pair)):
        if out[rank] < 0 and device not in out:
            out[rank] = device
    return out


def _stores(p: Problem, t: Table, device: Ints) -> Stores:
    out: Stores = [{} for _ in p.patterns]
    size = t.hi - t.lo
    for k, pattern in enumerate(t.pattern.tolist()):
        d = len(p.patterns[pattern].shape)
        box = Box(tuple(t.lo[k, :d].tolist()), tuple(size[k, :d].tolist()))
        for owner in t.owners(k).tolist():
            out[pattern].setdefault(int(device[owner]), []).append(box)
    return out


def _bytes(p: Problem, stores: Stores) -> Ints:
    out = np.zeros(len(p.devices), np.int64)
    for pattern, mine in zip(p.patterns, stores, strict=True):
        for device, boxes in mine.items():
            out[device] += pattern.weight * sum(elements(b.size) for b in boxes)
    return out


def tensor_order(p: Problem, have: Inventory, used: Stores, *, early: bool = True) -> Iterator[tuple[int, int]]:
    """(pattern, number of its tensor): always the one that raises the worst device least.

    `used`: old boxes that are still needed for something; with `early` all others count as free from the start.
    """
    count = [len(each.names) for each in p.patterns]
    new = np.stack([_of_one(p, have.new, k) for k in range(len(count))]) if count else np.zeros((0, 0), np.int64)
    old = np.stack([_of_one(p, used if early else have.old, k) for k in range(len(count))]) if count else new
    live = have.before.copy()
    if early:
        for k in range(len(count)):
            live -= count[k] * (_of_one(p, have.old, k) - old[k])
    top = np.maximum(have.before, have.after)
    done = [0] * len(count)
    grows = new > 0
    anywhere = grows.any(axis=1) if count else np.zeros(0, bool)
    open_ = np.array([n > 0 for n in count], bool)
    nothing = np.int64(-(1 << 60))
    while open_.any():
        height = np.where(grows, live + new - top, nothing).max(axis=1, initial=nothing)
        height = np.where(anywhere, height, nothing)
        least = height[open_].min()
        best = min(np.flatnonzero(open_ & (height == least)).tolist(), key=lambda k: p.patterns[k].names[done[k]])
        yield best, done[best]
        live += new[best] - old[best]
        done[best] += 1
        open_[best] = done[best] < count[best]


def _of_one(p: Problem, stores: Stores, pattern: int) -> npt.NDArray[np.int64]:
    out = np.zeros(len(p.devices), np.int64)
    for device, boxes in stores[pattern].items():
        out[device] = p.patterns[pattern].item * sum(elements(b.size) for b in boxes)
    return out
