"""State dicts of schedulers and the like: plain values on one side, the tensors among them on the other, and back.

Plain values keep their type through JSON and msgpack: what those do not know (tuples, keys that are no strings,
infinities) is written as a list with a tag before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from slurm_elastic.errors import UserMistake


def separate(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """`value` as plain values; tensors go into `tensors`, named by `path`. Raises UserMistake for other objects."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return ["tensor", path]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["float", repr(float(value))]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: separate(item, f"{path}.{key}", tensors) for key, item in value.items()}
        pairs = [
            [separate(key, f"{path}.{key}", tensors), separate(item, f"{path}.{key}", tensors)]
            for key, item in value.items()
        ]
        return ["items", pairs]
    if isinstance(value, (list, tuple)):
        tag = "tuple" if isinstance(value, tuple) else "list"
        return [tag, [separate(item, f"{path}.{place}", tensors) for place, item in enumerate(value)]]
    raise UserMistake(
        f"the state at {path} is a {type(value).__name__}, which cannot move between ranks",
        fix="let state_dict() return numbers, strings, lists, tuples, dicts and tensors only",
    )


def join(plain: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The opposite of `separate`."""
    if isinstance(plain, dict):
        return {key: join(item, tensors) for key, item in plain.items()}
    if not isinstance(plain, (list, tuple)):
        return plain
    tag, body = plain
    if tag == "tensor":
        return tensors[body]
    if tag == "float":
        return float(body)
    if tag == "items":
        return {join(key, tensors): join(item, tensors) for key, item in body}
    items = [join(item, tensors) for item in body]
    return tuple(items) if tag == "tuple" else items


def tensor_names(plain: Any) -> list[str]:
    """Names of the tensors that `join` will ask for."""
    if isinstance(plain, dict):
        return [name for item in plain.values() for name in tensor_names(item)]
    if not isinstance(plain, (list, tuple)):
        return []
    tag, body = plain
    if tag == "tensor":
        return [body]
    if tag == "float":
        return []
    items = [item for pair in body for item in pair] if tag == "items" else body
    return [name for item in items for name in tensor_names(item)]
