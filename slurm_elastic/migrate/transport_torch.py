"""Movement by torch.distributed's point-to-point calls: gloo for host memory, nccl for device memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.errors import MigrationCancelled, MigrationError, PeerLost
from slurm_elastic.migrate.transport import Message, Traffic
from slurm_elastic.migrate.transport_parts import Laid, Scratch, lay_out, total_bytes

LEAST_WAIT_S = 0.001  # gloo takes a time of zero for "for ever"


class TorchTransport:
    """`ranks`: the rank in `group` of every device. `device`: where the parts are; its kind chooses the backend.

    `sever` ends the group's connections (`training.groups.Sockets.cut`): without it, gloo offers no way to free
    a thread that waits for a peer which is silent but alive, and `abort` takes effect when the wait's time is over.
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
        self._group = group
        self._device = torch.device(device)
        self._sever = sever
        self._aborted = False
        self._outgoing = Scratch()
        self._incoming = Scratch()
        self._pending: _Posted | None = None

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Posted:
        self.check("")
        if self._pending and not self._pending.done:
            # The one before may still use the scratch, so this one brings its own.
            outgoing, incoming = Scratch(), Scratch()
        else:
            outgoing, incoming = self._outgoing, self._incoming
        out = lay_out(sends, outgoing, self._device)
        inn = lay_out(receives, incoming, self._device)
        for _, parcels in out:
            parcels.pack()
        operations = [self._operation(dist.irecv, peer, one) for peer, parcels in inn for one in parcels.buffers]
        operations += [self._operation(dist.isend, peer, one) for peer, parcels in out for one in parcels.buffers]
        peers = [peer for peer, parcels in (*inn, *out) for _ in parcels.buffers]
        self._pending = _Posted(self, self._start(operations), peers, inn)
        for message in sends:
            self.traffic.sent[message.peer] += total_bytes(message.parts)
        for message in receives:
            self.traffic.received[message.peer] += total_bytes(message.parts)
        return self._pending

    def abort(self) -> None:
        self._aborted = True
        if self._sever:
            self._sever()

    def close(self) -> None:
        self._outgoing = self._incoming = Scratch()

    def check(self, peer: str) -> None:
        if self._aborted:
            raise MigrationCancelled("the movement of state was called off", peer=peer)

    def _operation(self, call: Callable[..., Any], peer: str, buffer: torch.Tensor) -> dist.P2POp:
        if peer not in self._ranks:
            raise MigrationError(f"device {peer} has no rank in this movement's process group", peer=peer)
        return dist.P2POp(call, buffer, group=self._group, group_peer=self._ranks[peer])

    def _start(self, operations: list[dist.P2POp]) -> list[dist.Work]:
        if not operations:
            return []
        try:
            return dist.batch_isend_irecv(operations)
        except RuntimeError as broken:
            self.check("")
            raise PeerLost(f"state could not be sent or received: {broken}") from broken

    def wait_for(self, work: dist.Work, peer: str, left_s: float) -> None:
        try:
            finished = work.wait(timedelta(seconds=max(LEAST_WAIT_S, left_s)))
        except RuntimeError as broken:
            self.check(peer)
            raise PeerLost(
                f"device {peer} went away, or did not answer, while state moved: {broken}", peer=peer
            ) from None
        self.check(peer)
        if not finished:
            raise PeerLost(f"device {peer} went away while state moved", peer=peer)

    def settle(self) -> None:
        """Device memory: what was received may be read by the host's next calls on any stream."""
        if self._device.type == "cuda":
            with contextlib.suppress(AttributeError):
                torch.cuda.current_stream(self._device).synchronize()


class _Posted:
    """Operations under way; `peers`: of each."""

    def __init__(self, owner: TorchTransport, works: list[dist.Work], peers: list[str], inn: Laid) -> None:
        self._owner = owner
        self._works = works
        # Coalescing backends (nccl) return one work for all.
        self._peers = peers if len(works) == len(peers) else [", ".join(sorted(set(peers)))] * len(works)
        self._inn = inn
        self.done = False

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for work, peer in zip(self._works, self._peers, strict=True):
            self._owner.wait_for(work, peer, deadline - time.monotonic())
        self._owner.settle()
        for _, parcels in self._inn:
            parcels.unpack()
        self._works = []
        self.done = True
