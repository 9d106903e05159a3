"""The nouns of state movement: tensors, boxes, devices, layouts, and the plan between two layouts. Pure data.

A *box* is a rectangular part of a global tensor: offsets and sizes, one number per dimension (none for a scalar).
A *layout* says which boxes of which tensors each of N ranks holds. Ranks that hold nothing are legal.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

ITEMSIZE = {
    "complex128": 16,
    "float64": 8,
    "complex64": 8,
    "int64": 8,
    "uint64": 8,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}  # bytes per element, by torch's names

DeviceState = Literal["up", "leaving", "dead"]  # may send and host | may send only | neither, its state is gone
Status = Literal["ok", "unrecoverable", "infeasible"]


class Box(NamedTuple):
    """`offset` and `size` in elements of the global tensor."""

    offset: tuple[int, ...]
    size: tuple[int, ...]


class Tensor(NamedTuple):
    """One canonical global tensor; tied names are resolved before."""

    shape: tuple[int, ...]
    dtype: str


class Device(NamedTuple):
    """A place for one rank: what it is called, the node it is in, and whether it may send and host."""

    id: str
    node: str
    state: DeviceState = "up"


class Piece(msgspec.Struct, frozen=True, array_like=False):
    """A box of one tensor."""

    tensor: str
    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def box(self) -> Box:
        return Box(self.offset, self.size)


class Sending(msgspec.Struct, frozen=True):
    """This device sends a box to device `to`."""

    to: str
    tensor: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


class Receiving(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """This device gets a box from device `source`."""

    source: str
    tensor: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Refers first; then all sends and receives are posted together and waited for; then releases.

    `release` names whole old boxes. The k-th send from a to b meets the k-th receive of b from a.
    """

    refer: tuple[Piece, ...] = ()
    send: tuple[Sending, ...] = ()
    recv: tuple[Receiving, ...] = ()
    release: tuple[Piece, ...] = ()


class Claims(msgspec.Struct, frozen=True):
    """What the plan says of itself, in bytes; `span`: nodes touched, summed over the groups."""

    total_bytes: int
    inter_node_bytes: int
    max_send_bytes: int
    nodes: int
    span: int


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to get from one layout to another; MIGRATION's plan format. Equal input gives an equal plan.

    `host`: the device of new rank 0, 1, ... `programs`: the steps of each device that has any.
    `lost`: only when unrecoverable, exactly the boxes that nobody holds any more.
    `cost_matrix`: bytes new rank i lacks on device j; None where j cannot host. Only for small problems.
    """

    status: Status
    host: tuple[str, ...] = ()
    programs: dict[str, tuple[Step, ...]] = {}
    lost: tuple[Piece, ...] = ()
    claims: Claims | None = None
    cost_matrix: tuple[tuple[int | None, ...], ...] | None = None
