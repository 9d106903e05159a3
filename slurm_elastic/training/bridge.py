"""The way state takes between the workers of two generations: shared memory within a node, gloo or NCCL between nodes.

Both are made for one movement and gone after it; what need not move needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slurm_elastic.errors import PeerLost
from slurm_elastic.migrate.model import Plan
from slurm_elastic.migrate.transport import Transport
from slurm_elastic.migrate.transport_routed import RoutedTransport
from slurm_elastic.migrate.transport_shared import SharedMemoryTransport
from slurm_elastic.migrate.transport_torch import TorchTransport
from slurm_elastic.training.groups import Sockets
from slurm_elastic.training.meeting import Store, prefixed


def pairs_of(plan: Plan) -> set[tuple[str, str]]:
    """Who sends to whom."""
    return {(device, sending.to) for device, steps in plan.programs.items() for step in steps for sending in step.send}


class Bridge:
    """One worker's end. Order: make it and tell `address` to the others; `open`; use the transport; `close`."""

    def __init__(self, me: str, device: torch.device) -> None:
        self._me = me
        self._device = device
        self._shared = SharedMemoryTransport(me)
        self._group: Any = None
        self.address = self._shared.address

    def open(
        self,
        plan: Plan,
        addresses: Mapping[str, str],
        store: Store,
        timeout_s: float,
        sockets: Sockets,
    ) -> Transport:
        """`addresses`: of all devices, in an order that all agree on. Connections are noted in `sockets`.

        Collective over all of `addresses` if anybody needs a process group.
        """
        pairs = pairs_of(plan)
        near = {pair for pair in pairs if self._device.type == "cpu" and _are_near(pair, addresses)}
        mine = {one for pair in near for one in pair if self._me in pair} - {self._me}
        self._shared.introduce({peer: addresses[peer] for peer in mine}, timeout_s)
        if near == pairs:
            return self._shared
        names = list(addresses)
        me = names.index(self._me)
        with sockets.noting():
            self._group = _group(store, me, len(names), timeout_s, self._device)
        ranks = {name: rank for rank, name in enumerate(names)}
        far = GroupTransport(ranks, self._group, self._device, sockets.cut)
        return RoutedTransport(self._shared, far, lambda peer: peer in mine)

    def close(self) -> None:
        self._shared.close()
        self._group = None


class GroupTransport(TorchTransport):
    """Over a process group that belongs to no default group, so torch.distributed's functions do not know it."""

    def __init__(self, ranks: Mapping[str, int], group: Any, device: torch.device, sever: Callable[[], None]) -> None:
        super().__init__(ranks, group, device=device, sever=sever)

    def _operation(self, call: Callable[..., Any], peer: str, buffer: torch.Tensor) -> Any:
        return call, self._ranks[peer], buffer

    def _start(self, operations: Sequence[Any]) -> list[dist.Work]:
        if not operations:
            return []
        try:
            if self._device.type != "cuda":
                return [self._begin(*operation) for operation in operations]
            self._group._start_coalescing(self._device)
            for operation in operations:
                self._begin(*operation)
            return [self._group._end_coalescing(self._device)]
        except RuntimeError as broken:
            self.check("")
            raise PeerLost(f"state could not be sent or received: {broken}") from broken

    def _begin(self, call: Callable[..., Any], rank: int, buffer: torch.Tensor) -> dist.Work:
        method = self._group.send if call is dist.isend else self._group.recv
        work: dist.Work = method([buffer], rank, 0)
        return work


def _group(store: Store, me: int, size: int, timeout_s: float, device: torch.device) -> Any:
    own = prefixed(store, "bridge")
    if device.type == "cuda":
        return dist.ProcessGroupNCCL(own, me, size, dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(own, me, size, timedelta(seconds=timeout_s))


def _are_near(pair: tuple[str, str], addresses: Mapping[str, str]) -> bool:
    """Whether both are on one node, in one network, of one user: the place their addresses begin with."""
    one, other = (addresses[name].partition(" ")[0] for name in pair)
    return one == other
