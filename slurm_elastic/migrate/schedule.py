"""From transfers to programs: tensor after tensor, in chunks and rounds, freeing early, and never deadlocking.

Every message has one round number on both sides and each device goes through its rounds in order. So a device waits
only for rounds up to its own, and the smallest round that anybody waits in is complete on all sides.
Devices take tensors in one common order; a step holds what fits the chunk and, where possible, the memory limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from slurm_elastic.migrate.boxes import Ints, elements, intersection, merged
from slurm_elastic.migrate.lanes import Lane
from slurm_elastic.migrate.model import Box, Piece, Receiving, Sending, Step
from slurm_elastic.migrate.order import Inventory, Stores, inventory, tensor_order
from slurm_elastic.migrate.problem import Problem
from slurm_elastic.migrate.transfers import Movement, Rows

DEFAULT_CHUNK = 64 << 20


class Schedule(NamedTuple):
    """`programs`: by device index. `peak_extra`: bytes above the larger of before and after, on the worst device."""

    programs: dict[int, tuple[Step, ...]]
    peak_extra: int


class Message(NamedTuple):
    source: int
    target: int
    box: Box
    hop: int
    chained: bool


def schedule(p: Problem, host: Ints, moves: Movement) -> Schedule:
    """Programs of all devices: in the first order of tensors that keeps the memory limit, or else the lowest."""
    have = inventory(p, host)
    work = Work(p, moves, have)
    best: Schedule | None = None
    for late, early in ((False, True), (False, False), (True, True), (True, False)):
        writer = Writer(p, have, work, late=late)
        for pattern, number in tensor_order(p, have, work.used, early=early):
            writer.tensor(pattern, number)
        found = writer.result()
        best = found if best is None or found.peak_extra < best.peak_extra else best
        if p.limits.peak_extra is None or best.peak_extra <= p.limits.peak_extra:
            break
    assert best is not None
    return best


class Work:
    """Messages and refers by pattern, and the old boxes that they need."""

    def __init__(self, p: Problem, moves: Movement, have: Inventory) -> None:
        self.p = p
        self.refers: list[dict[int, list[Box]]] = [{} for _ in p.patterns]
        self.messages: list[list[tuple[int, int, Message]]] = [[] for _ in p.patterns]
        whole = [
            {d: set(_apart(boxes, have.new[k].get(d, []))) for d, boxes in mine.items()}
            for k, mine in enumerate(have.kept)
        ]
        self.adopted = [{d: sorted(boxes) for d, boxes in mine.items()} for mine in whole]
        stays: dict[tuple[int, int], list[Box]] = defaultdict(list)
        for pattern, device, box in _boxes(p, moves.stays):
            if not any(intersection(box, other) for other in whole[pattern].get(device, ())):
                stays[pattern, device].append(box)
        for (pattern, device), boxes in stays.items():
            self.refers[pattern][device] = merged(boxes)
        t = moves.travels
        rows = zip(
            _boxes(p, t),
            t.first.tolist(),
            t.last.tolist(),
            t.source.tolist(),
            t.hop.tolist(),
            t.chained.tolist(),
            strict=True,
        )
        for (pattern, target, box), first, last, source, hop, chained in rows:
            self.messages[pattern].append((first, last, Message(source, target, box, hop, chained)))
        self.used = self._used(have)

    def _used(self, have: Inventory) -> Stores:
        out: Stores = []
        for k, mine in enumerate(have.old):
            reads: dict[int, list[Box]] = {d: list(boxes) for d, boxes in self.refers[k].items()}
            for _, _, m in self.messages[k]:
                if not m.hop:
                    reads.setdefault(m.source, []).append(m.box)
            out.append(
                {
                    d: [b for b in boxes if any(intersection(b, r) for r in reads.get(d, ()))]
                    for d, boxes in mine.items()
                }
            )
        return out

    def of(self, pattern: int, number: int) -> list[Message]:
        """Messages of one tensor: neighbours joined; partners in turns; copies sent on chunk by chunk."""
        plain: dict[tuple[int, int], list[Box]] = defaultdict(list)
        chain: list[Message] = []
        for first, last, m in self.messages[pattern]:
            if first <= number < last:
                if m.chained:
                    chain.append(m)
                else:
                    plain[m.source, m.target].append(m.box)
        n = len(self.p.devices)
        out = [
            Message(source, target, box, 0, False)
            for source, target in sorted(plain, key=lambda pair: ((pair[1] - pair[0]) % n, pair))
            for box in merged(plain[source, target])
        ]
        most = max(1, (self.p.limits.chunk or DEFAULT_CHUNK) // self.p.patterns[pattern].item)
        return out + sorted(_chunks(chain, most), key=lambda m: (m.box, m.hop, m.target))


def _chunks(chain: list[Message], most: int) -> Iterator[Message]:
    """Copies that are sent on, in the pieces in which they arrive."""
    arrive: dict[int, list[Box]] = defaultdict(list)
    for m in sorted(chain, key=lambda m: m.hop):
        if m.hop:
            parts = [part for part in (intersection(m.box, box) for box in arrive[m.source]) if part]
        else:
            parts = split(m.box, most)
        arrive[m.target] += parts
        yield from (m._replace(box=part) for part in parts)


def _apart(boxes: Iterable[Box], others: Iterable[Box]) -> Iterator[Box]:
    """Kept boxes that can be bound at once: no other new box has a part of them."""
    boxes = list(boxes)
    for box in boxes:
        if not any(intersection(box, other) for other in (*others, *boxes) if other != box):
            yield box


def _boxes(p: Problem, rows: Rows) -> Iterator[tuple[int, int, Box]]:
    size = rows.hi - rows.lo
    for pattern, target, lo, wide in zip(
        rows.pattern.tolist(), rows.target.tolist(), rows.lo.tolist(), size.tolist(), strict=True
    ):
        d = len(p.patterns[pattern].shape)
        yield pattern, target, Box(tuple(lo[:d]), tuple(wide[:d]))


def split(box: Box, most: int) -> list[Box]:
    """The box in pieces of at most `most` elements."""
    out, left = [], [box]
    while left:
        piece, rest = take(left.pop(), most)
        out.append(piece)
        left += reversed(rest)
    return out


def take(box: Box, most: int) -> tuple[Box, list[Box]]:
    """(at most `most` elements from the front, boxes of the rest)."""
    if elements(box.size) <= most:
        return box, []
    axis = next(k for k, n in enumerate(box.size) if n > 1)
    row = elements(box.size) // box.size[axis]
    rows = max(1, most // row)
    (o, s), n = box, box.size[axis]
    head = Box(o, (*s[:axis], rows, *s[axis + 1 :]))
    rest = [Box((*o[:axis], o[axis] + rows, *o[axis + 1 :]), (*s[:axis], n - rows, *s[axis + 1 :]))] if rows < n else []
    first, inner = take(head, most)
    return first, inner + rest


class Writer:
    """Writes the programs, one tensor at a time, and keeps account of memory.

    `late`: what a device has itself is copied after a tensor's messages and not before.
    """

    def __init__(self, p: Problem, have: Inventory, work: Work, *, late: bool = False) -> None:
        self.p, self.have, self.work, self.late = p, have, work, late
        self.chunk = p.limits.chunk or DEFAULT_CHUNK
        extra = 2 * self.chunk if p.limits.peak_extra is None else p.limits.peak_extra
        self.top = np.maximum(have.before, have.after).tolist()
        self.lanes = [
            Lane(before, top + extra, self.chunk, peak=before)
            for before, top in zip(have.before.tolist(), self.top, strict=True)
        ]
        self._at_once()

    def _at_once(self) -> None:
        """First, on each device: bind what stays as it is, free what nobody needs."""
        for k, pattern in enumerate(self.p.patterns):
            for d, boxes in sorted(self.work.adopted[k].items()):
                lane = self.lanes[d]
                step = lane.step if lane.steps else lane.begin()
                step.refer += [Piece(name, *box) for name in pattern.names for box in boxes]
            for d, boxes in sorted(self.have.old[k].items()):
                used = set(self.work.used[k].get(d, ()))
                for box in boxes:
                    if box not in used:
                        lane = self.lanes[d]
                        lane.begin() if not lane.steps else None
                        for name in pattern.names:
                            lane.free(Piece(name, *box), elements(box.size) * pattern.item, len(lane.steps) - 1)

    def tensor(self, pattern: int, number: int) -> None:
        """Everything about one tensor, on all devices."""
        messages = self.work.of(pattern, number)
        refers = self.work.refers[pattern]
        self.name, self.item = self.p.patterns[pattern].names[number], self.p.patterns[pattern].item
        self.unborn = {d: set(boxes) for d, boxes in self.have.new[pattern].items()}
        self.arrived: dict[int, list[tuple[Box, int]]] = defaultdict(list)
        self.needs: dict[int, dict[Box, int]] = {
            d: dict.fromkeys(boxes, 0) for d, boxes in self.work.used[pattern].items() if boxes
        }
        for d, boxes in refers.items():
            for box in boxes:
                self._count(d, box, 1)
        for m in messages:
            if not m.hop:
                self._count(m.source, m.box, 1)
        self._free_unread()
        if self.late:
            self._send_all(messages)
        for d in sorted(refers):
            for box in refers[d]:
                self._refer(d, box)
        if not self.late:
            self._send_all(messages)

    def _count(self, device: int, box: Box, sign: int) -> list[Box]:
        """Old boxes of which nothing more is needed after this."""
        over = []
        mine = self.needs.get(device, {})
        for old in mine:
            common = intersection(old, box)
            if common:
                mine[old] += sign * elements(common.size)
                if not mine[old]:
                    over.append(old)
        return over

    def _free_unread(self) -> None:
        """Old boxes that are needed of other tensors of the pattern, but not of this."""
        for d, mine in sorted(self.needs.items()):
            for box in [box for box, count in mine.items() if not count]:
                self._release(d, box)

    def _release(self, device: int, old: Box) -> None:
        lane = self.lanes[device]
        if not lane.steps:
            lane.begin()
        lane.free(Piece(self.name, *old), elements(old.size) * self.item, len(lane.steps) - 1)

    def _free(self, device: int, box: Box) -> None:
        for old in self._count(device, box, -1):
            self._release(device, old)

    def _born(self, device: int, box: Box) -> list[Box]:
        return [new for new in sorted(self.unborn.get(device, ())) if intersection(new, box)]

    def _bytes(self, boxes: Iterable[Box]) -> int:
        return self.item * sum(elements(box.size) for box in boxes)

    def _refer(self, device: int, box: Box) -> None:
        lane, born = self.lanes[device], self._born(device, box)
        size = self._bytes(born)
        if not lane.steps or lane.room() < size:
            lane.begin()
        lane.step.refer.append(Piece(self.name, *box))
        lane.grow(size)
        self.unborn.get(device, set()).difference_update(born)
        self._free(device, box)

    def _send_all(self, messages: Iterable[Message]) -> None:
        for m in messages:
            left = [m.box]
            while left:
                box = left.pop()
                piece, rest = self._place(m, box)
                left += reversed(rest)
                self.arrived[m.target].append((piece, self.lanes[m.target].rounds))
                if not m.hop:
                    self._free(m.source, piece)

    def _place(self, m: Message, box: Box) -> tuple[Box, list[Box]]:
        """Puts the front of a box into a round of both sides: one that is being filled if much of it fits, or a new."""
        source, target = self.lanes[m.source], self.lanes[m.target]
        earliest = 0
        if m.hop:
            earliest = 1 + max(at for part, at in self.arrived[m.source] if intersection(part, box))
        born = self._bytes(self._born(m.target, box))
        wanted = elements(box.size)
        for fresh in (False, True):
            at = max(earliest, _next(source, fresh, out=True), _next(target, fresh, out=False))
            most = min(
                _budget(source, at, fresh, out=True, allocated=0), _budget(target, at, fresh, out=False, allocated=born)
            )
            if fresh or most // self.item >= min(wanted, max(1, self.chunk // self.item // 2)):
                break
        if most < self.item:  # over the limit whatever we do
            most = max(self.item, self.chunk)
        piece, rest = take(box, most // self.item)
        self._post(m, piece, at, fresh)
        return piece, rest

    def _post(self, m: Message, box: Box, at: int, fresh: bool) -> None:
        size, born = self._bytes([box]), self._born(m.target, box)
        for lane in (self.lanes[m.source], self.lanes[m.target]):
            if not lane.steps or not _joins(lane, at, fresh):
                lane.begin(at)
            elif lane.step.round is None:
                lane.enter(at)
        source, target = self.lanes[m.source], self.lanes[m.target]
        ids = self.p.devices
        source.step.send.append(Sending(ids[m.target].id, self.name, *box))
        target.step.recv.append(Receiving(ids[m.source].id, self.name, *box))
        source.grow(0, out=size)
        target.grow(self._bytes(born), into=size)
        self.unborn.get(m.target, set()).difference_update(born)

    def result(self) -> Schedule:
        programs = {d: tuple(step.done() for step in lane.steps) for d, lane in enumerate(self.lanes) if lane.steps}
        extra = max((lane.peak - top for lane, top in zip(self.lanes, self.top, strict=True)), default=0)
        return Schedule(programs, extra)


def _next(lane: Lane, fresh: bool, *, out: bool) -> int:
    """The first round that a message could be in."""
    if fresh or not lane.steps or lane.step.round is None:
        return lane.rounds + 1
    full = (lane.step.out if out else lane.step.into) >= lane.chunk
    return lane.rounds + 1 if full else lane.rounds


def _joins(lane: Lane, at: int, fresh: bool) -> bool:
    """Whether a message of round `at` goes into the step being filled."""
    return not fresh and lane.step.round in (None, at)


def _budget(lane: Lane, at: int, fresh: bool, *, out: bool, allocated: int) -> int:
    """Bytes that it may have there, by chunk and memory."""
    if lane.steps and _joins(lane, at, fresh):
        used = lane.step.out if out else lane.step.into
        return min(lane.chunk - used, lane.room() - allocated)
    return min(lane.chunk, lane.fresh_room() - allocated)
