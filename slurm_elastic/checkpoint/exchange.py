"""Small JSON values between the ranks of a process group, without pickle."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
import torch.distributed as dist


def group_rank(group: dist.ProcessGroup | None) -> int:
    """Rank inside `group` (None: the default group); 0 without torch.distributed."""
    return dist.get_rank(group) if dist.is_initialized() else 0


def all_gather_json(value: dict[str, Any], group: dist.ProcessGroup | None) -> list[dict[str, Any]]:
    """Every rank's value, by rank in `group`. A collective on CPU tensors; [value] without torch.distributed."""
    if not dist.is_initialized():
        return [value]
    world = dist.get_world_size(group)
    body = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([body.numel()]), group=group)
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: body.numel()] = body
    parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return [
        msgspec.json.decode(bytes(part[: int(length)].tolist()), type=dict[str, Any])
        for part, length in zip(parts, lengths, strict=True)
    ]
