"""Movement by the point-to-point calls of a torch process group: gloo for host memory, nccl for device memory.

The group may be any, also one that torch.distributed's registry does not know.

gloo (torch 2.13) never tells an operation whose bytes are half way that its connection ended: it waits until its time
is over. Only operations that have not begun are told. So a short mark follows each message and is waited for first,
and each message is acknowledged by the receiver: nobody ever waits for bytes that may stop half way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.errors import MigrationCancelled, MigrationError, PeerLost
from slurm_elastic.migrate.transport import Message, Traffic
from slurm_elastic.migrate.transport_parts import Parcels, Scratch, lay_out, total_bytes

LEAST_WAIT_S = 0.001  # gloo takes a time of zero for "for ever"
STATE_TAG, MARK_TAG, ACKNOWLEDGEMENT_TAG = 1, 1, 2  # a mark comes after the state on one channel
MARK_BYTES = 8


@dataclass(slots=True)
class _Under:
    """One message under way. `told`: of a message to come its mark, of one that leaves the acknowledgement."""

    peer: str
    parcels: Parcels
    works: list[dist.Work]
    told: dist.Work
    mark: torch.Tensor


class TorchTransport:
    """`ranks`: the rank in `group` of every device. `device`: where the parts are; its kind chooses the backend.

    `sever` ends the group's connections (`training.groups.Sockets.cut`): without it, gloo offers no way to free a
    thread that waits for a peer which is silent but alive, and `abort` takes effect when the wait's time is over.
    The group belongs to the caller, who destroys it.
    """

    def __init__(
        self,
        ranks: Mapping[str, int],
        group: dist.ProcessGroup,
        *,
        device: torch.device | str = "cpu",
        sever: Callable[[], None] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._ranks = dict(ranks)
        self._group: Any = group
        self._device = torch.device(device)
        self._sever = sever
        self._aborted = False
        self._outgoing = Scratch()
        self._incoming = Scratch()
        self._under_way = 0

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Posted | _PostedOnDevice:
        self._check("")
        fresh = self._under_way > 0  # the transfer before may still use the scratch
        out = lay_out(sends, Scratch() if fresh else self._outgoing, self._device)
        inn = lay_out(receives, Scratch() if fresh else self._incoming, self._device)
        for _, parcels in out:
            parcels.pack()
        for message in sends:
            self.traffic.sent[message.peer] += total_bytes(message.parts)
        for message in receives:
            self.traffic.received[message.peer] += total_bytes(message.parts)
        self._under_way += 1
        if self._device.type == "cuda":
            return _PostedOnDevice(self, self._coalesced(out, inn), [*out, *inn], inn)
        awaited = [self._receive(peer, parcels) for peer, parcels in inn]
        return _Posted(self, awaited, [self._send(peer, parcels) for peer, parcels in out])

    def abort(self) -> None:
        self._aborted = True
        if self._sever:
            self._sever()

    def close(self) -> None:
        self._outgoing = self._incoming = Scratch()

    def _send(self, peer: str, parcels: Parcels) -> _Under:
        mark = torch.zeros(MARK_BYTES, dtype=torch.uint8)
        heard = self._begin(self._group.recv, peer, torch.zeros_like(mark), ACKNOWLEDGEMENT_TAG)
        works = [self._begin(self._group.send, peer, buffer, STATE_TAG) for buffer in parcels.buffers]
        works.append(self._begin(self._group.send, peer, mark, MARK_TAG))
        return _Under(peer, parcels, works, heard, mark)

    def _receive(self, peer: str, parcels: Parcels) -> _Under:
        mark = torch.zeros(MARK_BYTES, dtype=torch.uint8)
        works = [self._begin(self._group.recv, peer, buffer, STATE_TAG) for buffer in parcels.buffers]
        return _Under(peer, parcels, works, self._begin(self._group.recv, peer, mark, MARK_TAG), mark)

    def acknowledge(self, one: _Under) -> dist.Work | None:
        """All of it is here. If the peer is gone meanwhile, that is no loss of this message."""
        with contextlib.suppress(PeerLost):
            return self._begin(self._group.send, one.peer, one.mark, ACKNOWLEDGEMENT_TAG)
        return None

    def _begin(self, call: Callable[..., dist.Work], peer: str, buffer: torch.Tensor, tag: int) -> dist.Work:
        try:
            return call([buffer], self._rank(peer), tag)
        except RuntimeError as broken:
            self._check(peer)
            raise PeerLost(f"device {peer} went away while state moved: {broken}", peer=peer) from None

    def _coalesced(self, out: list[tuple[str, Parcels]], inn: list[tuple[str, Parcels]]) -> dist.Work | None:
        """All operations of a step as one (nccl would deadlock in pairs of single ones)."""
        if not out and not inn:
            return None
        self._group._start_coalescing(self._device)
        for call, laid in ((self._group.recv, inn), (self._group.send, out)):
            for peer, parcels in laid:
                for buffer in parcels.buffers:
                    self._begin(call, peer, buffer, 0)
        work: dist.Work = self._group._end_coalescing(self._device)
        return work

    def _rank(self, peer: str) -> int:
        if peer not in self._ranks:
            raise MigrationError(f"device {peer} has no rank in this movement's process group", peer=peer)
        return self._ranks[peer]

    def _check(self, peer: str) -> None:
        if self._aborted:
            raise MigrationCancelled("the movement of state was called off", peer=peer)

    def wait_for(self, work: dist.Work, peer: str, deadline: float) -> None:
        try:
            finished = work.wait(timedelta(seconds=max(LEAST_WAIT_S, deadline - time.monotonic())))
        except RuntimeError as broken:
            self._check(peer)
            problem = f"device {peer} went away, or did not answer, while state moved: {broken}"
            raise PeerLost(problem, peer=peer) from None
        self._check(peer)
        if not finished:
            raise PeerLost(f"device {peer} went away while state moved", peer=peer)

    def finished(self) -> None:
        self._under_way -= 1


class _Posted:
    """A step in host memory."""

    def __init__(self, owner: TorchTransport, inn: list[_Under], out: list[_Under]) -> None:
        self._owner = owner
        self._inn = inn
        self._out = out

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        answers = []
        for one in self._inn:
            self._wait(one, deadline)
            answers.append(self._owner.acknowledge(one))
        for answer in filter(None, answers):
            with contextlib.suppress(RuntimeError):  # the peer is gone: see `acknowledge`
                answer.wait(timedelta(seconds=max(LEAST_WAIT_S, deadline - time.monotonic())))
        for one in self._out:
            self._wait(one, deadline)
        for one in self._inn:
            one.parcels.unpack()
        self._inn, self._out = [], []
        self._owner.finished()

    def _wait(self, one: _Under, deadline: float) -> None:
        """First what tells that the rest is through: then that does not wait."""
        for work in (one.told, *one.works):
            self._owner.wait_for(work, one.peer, deadline)


class _PostedOnDevice:
    """A step in device memory: one operation for all, watched by the backend itself."""

    def __init__(
        self,
        owner: TorchTransport,
        work: dist.Work | None,
        laid: list[tuple[str, Parcels]],
        inn: list[tuple[str, Parcels]],
    ) -> None:
        self._owner = owner
        self._work = work
        self._laid = laid
        self._inn = inn

    def wait(self, timeout_s: float) -> None:
        peers = ", ".join(sorted({peer for peer, _ in self._laid}))
        if self._work is not None:
            self._owner.wait_for(self._work, peers, time.monotonic() + timeout_s)
        for _, parcels in self._inn:
            parcels.unpack()
        if self._work is not None:
            torch.cuda.synchronize()  # what was sent may be freed, what came be read by any stream
        self._laid, self._inn = [], []
        self._owner.finished()
