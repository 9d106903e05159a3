"""Buffers that are no part of the state (rotary tables, masks): `build` cannot compute them on the meta device.

Nobody stores or sends them: they are computed again on each rank. A buffer that the module made with `device="cpu"`
has its values already and is only moved. For the others there is the module's own method `reset_buffers()`, or the
function given as `Parts(buffers=...)`; both write into the buffers they find or assign new ones, and run with the
training's device as the default device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.capture_names import joined, modules


def compute_buffers(
    own: str, model: nn.Module, hook: Callable[[nn.Module], object] | None, device: torch.device
) -> None:
    """Give every non-persistent buffer its values. Raises UserMistake naming the module that has no way to do so."""
    for name, module in modules(model):
        keys = [key for key in module._non_persistent_buffers_set if module._buffers.get(key) is not None]
        missing = [key for key in keys if buffer_of(module, key).is_meta]
        for key in keys:
            buffer = buffer_of(module, key)
            real = unset(torch.empty_like(buffer, device=device)) if key in missing else buffer.to(device)
            module._buffers[key] = real
        if not missing:
            continue
        reset = getattr(module, "reset_buffers", None)
        with torch.no_grad(), device:
            if reset is not None:
                reset()
            if hook is not None:
                hook(module)
        for key in missing:
            if (reset is None and hook is None) or is_unset(buffer_of(module, key)):
                raise UserMistake(
                    f"{own}: the buffer {joined(name, key)} of {type(module).__name__} has no values, because "
                    "build(world) runs on the meta device",
                    fix="make it with device='cpu', give the module a reset_buffers(), or use Parts(buffers=...)",
                )
            module._buffers[key] = buffer_of(module, key).to(device)


def buffer_of(module: nn.Module, key: str) -> torch.Tensor:
    buffer = module._buffers[key]
    assert buffer is not None
    return buffer


def unset(tensor: torch.Tensor) -> torch.Tensor:
    """Mark every element as having no value: not-a-number, or the least integer. Bools cannot be marked."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(torch.nan)
    return tensor.fill_(False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min)


def is_unset(tensor: torch.Tensor) -> bool:
    """True when some element still has the mark; never for types whose least value is an ordinary one."""
    if tensor.is_meta:
        return True
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(torch.isnan(tensor).any())
    if tensor.dtype == torch.bool or torch.iinfo(tensor.dtype).min == 0:
        return False
    return bool((tensor == torch.iinfo(tensor.dtype).min).any())
