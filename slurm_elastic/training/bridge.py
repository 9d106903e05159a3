"""The way state takes between the workers of two generations: shared memory within a node, gloo or NCCL between nodes.

Both are made for one movement and gone after it; what need not move needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
        far = TorchTransport(ranks, self._group, device=self._device, sever=sockets.cut)
        return RoutedTransport(self._shared, far, lambda peer: peer in mine)

    def close(self) -> None:
        self._shared.close()
        self._group = None


def _group(store: Store, me: int, size: int, timeout_s: float, device: torch.device) -> Any:
    own = prefixed(store, "bridge")
    if device.type == "cuda":
        return dist.ProcessGroupNCCL(own, me, size, dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(own, me, size, timedelta(seconds=timeout_s))


def _are_near(pair: tuple[str, str], addresses: Mapping[str, str]) -> bool:
    """Whether both are on one node, in one network, of one user: the place their addresses begin with."""
    one, other = (addresses[name].partition(" ")[0] for name in pair)
    return one == other
