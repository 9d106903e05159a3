"""Buffers that ranks keep apart while they train, such as the running statistics of BatchNorm.

Each rank changes its own in the forward pass. DDP sends those of its first rank to all, but only at the next forward
pass; FSDP2 never does. So between two steps copies that count as equal may differ. Sharing them first makes the first
rank's the state, which is what DDP would go on with and what a checkpoint would have saved.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from slurm_elastic.migrate.capture_names import Objects, places


def share_buffers(objects: Mapping[str, object], group: dist.ProcessGroup | None = None) -> None:
    """Make persistent plain buffers what they are on the group's first rank. Collective; one message per data type.

    `group`: the ranks whose plain tensors are to be equal (`peers` of `capture`); None for all.
    """
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for _, model in sorted(Objects(objects).models.items()):
        seen: set[int] = set()
        for place in places(model).values():
            tensor = place.tensor
            if place.is_buffer and place.is_persistent and not isinstance(tensor, DTensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                by_type.setdefault(tensor.dtype, []).append(tensor)
    for dtype in sorted(by_type, key=str):
        together = torch.cat([tensor.detach().reshape(-1) for tensor in by_type[dtype]])
        dist.broadcast(together, group=group, group_src=0)
        passed = 0
        for tensor in by_type[dtype]:
            tensor.copy_(together[passed : passed + tensor.numel()].view_as(tensor))
            passed += tensor.numel()
