"""Carries a plan out on marked elements and says what is wrong with it. Needs nothing but the case and the plan."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from slurm_elastic.migrate.model import ITEMSIZE

Box = tuple[str, tuple[int, ...], tuple[int, ...]]


class Store:
    """One stored box: which elements are there."""

    def __init__(self, box: Box, filled: bool) -> None:
        self.box, self.there, self.live = box, np.full(box[2], filled), filled

    def part(self, tensor: str, offset: Any, size: Any) -> tuple[Any, Any] | None:
        """(where in this box, where in the other), or None."""
        name, mine, wide = self.box
        low = [max(a, b) for a, b in zip(mine, offset, strict=True)] if name == tensor else []
        if name != tensor:
            return None
        high = [min(a + n, b + m) for a, n, b, m in zip(mine, wide, offset, size, strict=True)]
        if any(h <= a for a, h in zip(low, high, strict=True)):
            return None
        inner = tuple(slice(a - o, h - o) for a, h, o in zip(low, high, mine, strict=True))
        outer = tuple(slice(a - o, h - o) for a, h, o in zip(low, high, offset, strict=True))
        return inner, outer


class Judge:
    """`faults`: what was wrong. `received`, `sent`: bytes by device. `peak`: bytes above before and after."""

    def __init__(self, case: dict[str, Any], plan: dict[str, Any]) -> None:
        self.case, self.plan, self.faults = case, plan, []
        self.name = {n: t.get("alias_of", n) for n, t in case["tensors"].items()}
        self.item = {n: ITEMSIZE[t["dtype"]] for n, t in case["tensors"].items() if "dtype" in t}
        self.states = {d["id"]: d["state"] for d in case["devices"]}
        self.old: dict[str, list[Store]] = {d: [] for d in self.states}
        self.new: dict[str, list[Store]] = {d: [] for d in self.states}
        for rank in case["prev"]["ranks"]:
            if rank["device"] and self.states[rank["device"]] != "dead":
                self.old[rank["device"]] = [Store(box, True) for box in self._boxes(rank["holds"])]
        for device, rank in zip(plan["host"], case["curr"]["ranks"], strict=True):
            self.new[device] = [Store(box, False) for box in self._boxes(rank["holds"])]
        self.received: dict[str, int] = defaultdict(int)
        self.sent: dict[str, int] = defaultdict(int)
        self.live = {d: self._size(stores) for d, stores in self.old.items()}
        self.top = {d: max(self.live[d], self._size(self.new[d])) for d in self.live}
        self.peak = dict.fromkeys(self.live, 0)
        self._run()

    def _boxes(self, holds: dict[str, Any]) -> list[Box]:
        boxes = {(self.name[n], tuple(o), tuple(s)) for n, pairs in holds.items() for o, s in pairs}
        return sorted(box for box in boxes if np.prod(box[2], dtype=int))

    def _size(self, stores: list[Store]) -> int:
        return sum(store.there.size * self.item[store.box[0]] for store in stores)

    def _run(self) -> None:
        at = dict.fromkeys(self.states, 0)
        posted: dict[str, list[tuple[str, Any, int]]] = {}
        queues: dict[tuple[str, tuple[str, str]], list[Any]] = defaultdict(list)
        moved = True
        while moved:
            moved = False
            for d in self.states:
                steps = self.plan["programs"].get(d, [])
                if d not in posted and at[d] < len(steps):
                    posted[d] = self._post(d, steps[at[d]], queues)
                    moved = True
                ready = d in posted and all(len(queues[_other(kind), ch]) > k for kind, ch, k in posted[d])
                if ready:
                    self._finish(d, steps[at[d]], posted.pop(d), queues)
                    at[d] += 1
                    moved = True
        if any(at[d] < len(self.plan["programs"].get(d, [])) for d in self.states):
            self.faults.append("deadlock")
        for d in self.plan["host"]:
            kept = {store.box for store in self.new[d]}
            self.faults += [f"{d}: never freed {s.box}" for s in self.old[d] if s.live and s.box not in kept]
            self.faults += [f"{d}: incomplete {s.box}" for s in self.new[d] if not s.there.all()]

    def _post(self, d: str, step: Any, queues: Any) -> list[tuple[str, Any, int]]:
        out = into = 0
        entries = []
        for piece in step.get("refer", []):
            self._write(d, piece)
            if not self._readable(d, piece, self.old[d]):
                self.faults.append(f"{d}: refers to what it has not: {piece}")
        for piece in step.get("send", []):
            if not self._readable(d, piece, [*self.old[d], *self.new[d]]):
                self.faults.append(f"{d}: sends what is not there: {piece}")
            out += self._bytes(piece)
            entries.append(self._queue("send", (d, piece["to"]), piece, queues))
        for piece in step.get("recv", []):
            into += self._bytes(piece)
            self._allocate(d, piece)
            entries.append(self._queue("recv", (piece["from"], d), piece, queues))
        chunk = self.case.get("limits", {}).get("chunk_bytes")
        if chunk and max(out, into) > chunk:
            self.faults.append(f"{d}: {out} out and {into} in, chunk {chunk}")
        self.sent[d] += out
        self.received[d] += into
        self.peak[d] = max(self.peak[d], self.live[d] + out + into - self.top[d])
        return entries

    def _queue(self, kind: str, channel: tuple[str, str], piece: Any, queues: Any) -> tuple[str, Any, int]:
        queue = queues[kind, channel]
        queue.append((self.name[piece["tensor"]], tuple(piece["offset"]), tuple(piece["size"])))
        return kind, channel, len(queue) - 1

    def _finish(self, d: str, step: Any, entries: Any, queues: Any) -> None:
        for kind, channel, k in entries:
            if queues["send", channel][k] != queues["recv", channel][k]:
                self.faults.append(f"{channel}: number {k} differs")
            if kind == "recv":
                tensor, offset, size = queues["recv", channel][k]
                self._write(d, {"tensor": tensor, "offset": offset, "size": size})
        for piece in step.get("release", []):
            box = (self.name[piece["tensor"]], tuple(piece["offset"]), tuple(piece["size"]))
            mine = [s for s in self.old[d] if s.box == box and s.live]
            if len(mine) != 1 or any(s.box == box for s in self.new[d]):
                self.faults.append(f"{d}: cannot free {box}")
            else:
                mine[0].live = False
                self.live[d] -= self._size(mine)

    def _bytes(self, piece: Any) -> int:
        return int(np.prod(piece["size"], dtype=int)) * self.item[self.name[piece["tensor"]]]

    def _readable(self, d: str, piece: Any, stores: list[Store]) -> bool:
        there = np.zeros(piece["size"], bool)
        for store in stores:
            part = store.part(self.name[piece["tensor"]], piece["offset"], piece["size"])
            if part and (store.live or store not in self.old[d]):
                there[part[1]] |= store.there[part[0]]
        return bool(there.all())

    def _allocate(self, d: str, piece: Any) -> None:
        kept = {store.box for store in self.old[d]}
        for store in self.new[d]:
            if store.part(self.name[piece["tensor"]], piece["offset"], piece["size"]) and not store.live:
                store.live = True
                self.live[d] += 0 if store.box in kept else self._size([store])

    def _write(self, d: str, piece: Any) -> None:
        self._allocate(d, piece)
        wanted, twice = np.zeros(piece["size"], bool), np.zeros(piece["size"], bool)
        for store in self.new[d]:
            part = store.part(self.name[piece["tensor"]], piece["offset"], piece["size"])
            if part:
                wanted[part[1]] = True
                twice[part[1]] |= store.there[part[0]]
                store.there[part[0]] = True
        if not wanted.all():
            self.faults.append(f"{d}: does not need {piece}")
        if twice.any():
            self.faults.append(f"{d}: written twice {piece}")


def _other(kind: str) -> str:
    return "recv" if kind == "send" else "send"
