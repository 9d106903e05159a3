"""Movement by mpi4py, for runs whose workers are one MPI world. Host memory only. The one module that needs mpi4py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from slurm_elastic.errors import MigrationCancelled, MigrationError, MissingDependency, PeerLost
from slurm_elastic.migrate.transport import Message, Traffic
from slurm_elastic.migrate.transport_parts import Laid, Scratch, lay_out, total_bytes

STATE_TAG = 1
ABORT_TAG = 2
MOST_BYTES = 1 << 30  # of one MPI message: older bindings count in 32 bits
BUSY_S = 0.002  # without progress for this long, the processor is given to others
REST_S = 0.0002
HOST = torch.device("cpu")


class MpiTransport:
    """`ranks`: the rank in `communicator` of every device. The communicator is the caller's, and used for nothing else.

    MPI tells no process that another one died; a wait ends by its time, by `abort`, or by the `abort` of a peer.
    """

    def __init__(self, ranks: Mapping[str, int], communicator: Any) -> None:
        try:
            from mpi4py import MPI
        except ImportError as missing:
            raise MissingDependency(
                "moving state by MPI needs mpi4py", fix="pip install slurm-elastic[mpi]"
            ) from missing
        self._mpi = MPI
        self.traffic = Traffic()
        self._ranks = dict(ranks)
        self._names = {rank: name for name, rank in ranks.items()}
        self._communicator = communicator
        self._aborted = False
        self._told = False
        self._outgoing = Scratch()
        self._incoming = Scratch()
        self._under_way = 0

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Posted:
        self._check()
        fresh = self._under_way > 0  # the transfer before may still use the scratch
        out = lay_out(sends, Scratch() if fresh else self._outgoing, HOST)
        inn = lay_out(receives, Scratch() if fresh else self._incoming, HOST)
        for _, parcels in out:
            parcels.pack()
        requests, peers = [], []
        for call, laid in ((self._communicator.Irecv, inn), (self._communicator.Isend, out)):
            for peer, parcels in laid:
                for buffer in parcels.buffers:
                    for piece in torch.split(buffer, MOST_BYTES):
                        requests.append(call([piece.numpy(), self._mpi.BYTE], self._rank(peer), STATE_TAG))
                        peers.append(peer)
        for message in sends:
            self.traffic.sent[message.peer] += total_bytes(message.parts)
        for message in receives:
            self.traffic.received[message.peer] += total_bytes(message.parts)
        self._under_way += 1
        return _Posted(self, requests, peers, out, inn)

    def finish(self, requests: list[Any], peers: list[str], timeout_s: float) -> None:
        """Drive MPI until all are complete. MPI moves large messages only while it is called, so this asks busily."""
        deadline = time.monotonic() + timeout_s
        left = list(zip(requests, peers, strict=True))
        last = time.monotonic()
        while left:
            self._check()
            before = len(left)
            left = [(request, peer) for request, peer in left if not request.Test()]
            now = time.monotonic()
            if len(left) < before:
                last = now
            elif now > deadline:
                peer = left[0][1]
                raise PeerLost(f"device {peer} did not answer within {timeout_s:g} s while state moved", peer=peer)
            elif now - last > BUSY_S:
                time.sleep(REST_S)
        self._under_way -= 1

    def abort(self) -> None:
        # MPI may not be entered by two threads here: the waiting one tells the peers, or `close`.
        self._aborted = True

    def close(self) -> None:
        if self._aborted:
            self._tell()
        self._outgoing = self._incoming = Scratch()

    def _check(self) -> None:
        status = self._mpi.Status()
        if self._aborted:
            self._tell()
            raise MigrationCancelled("the movement of state was called off")
        if self._communicator.Iprobe(self._mpi.ANY_SOURCE, ABORT_TAG, status):
            peer = self._names.get(status.Get_source(), str(status.Get_source()))
            raise PeerLost(f"device {peer} gave up while state moved", peer=peer)

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        for rank in sorted(self._names):
            if rank != self._communicator.Get_rank():
                self._communicator.Isend([bytearray(), self._mpi.BYTE], rank, ABORT_TAG)  # empty: away at once

    def _rank(self, peer: str) -> int:
        if peer not in self._ranks:
            raise MigrationError(f"device {peer} has no rank in this movement's communicator", peer=peer)
        return self._ranks[peer]


class _Posted:
    def __init__(
        self,
        owner: MpiTransport,
        requests: list[Any],
        peers: list[str],
        out: Laid,
        inn: Laid,
    ) -> None:
        self._owner = owner
        self._requests = requests
        self._peers = peers
        self._out = out  # MPI reads these buffers until it is done
        self._inn = inn

    def wait(self, timeout_s: float) -> None:
        self._owner.finish(self._requests, self._peers, timeout_s)
        for _, parcels in self._inn:
            parcels.unpack()
        self._requests, self._out = [], []
