"""Reads layout files: what each worker of a run holds, or of a run to be. Two of them are a transition.

The old layout names the device and node of each worker. The new one says what its workers need, and may name the
devices that it can live on; devices of the old run that are not among them still send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from slurm_elastic.errors import UserMistake
from slurm_elastic.migrate.casefile import LimitSpec, limits
from slurm_elastic.migrate.model import Device, DeviceState
from slurm_elastic.migrate.problem import Problem, problem
from slurm_elastic.migrate.spec import (
    DeviceSpec,
    Fault,
    Holds,
    Tensors,
    TensorSpec,
    converted,
    devices,
    groups,
    objective,
    read_json,
)

FORMAT = "slurm-elastic-layout/1"


class Worker(msgspec.Struct):
    holds: Holds
    device: str | None = None
    node: str | None = None
    state: DeviceState = "up"


class LayoutSpec(msgspec.Struct):
    format: str
    workers: list[Worker]
    tensors: dict[str, TensorSpec] = {}
    devices: list[DeviceSpec] | None = None
    groups: list[list[int]] | None = None
    objective: list[str | dict[str, Any]] | None = None
    limits: LimitSpec | None = None


def read_transition(source: Path, target: Path) -> Problem:
    """From two layout files. Raises UserMistake with file and key."""
    old, new = _read(source), _read(target)
    at = source
    try:
        places = _places(old)
        tensors = Tensors(old.tensors)
        index = {device.id: k for k, device in enumerate(places)}
        held = [
            (index[str(w.device)], tensors.holdings(w.holds, f"workers[{k}].holds")) for k, w in enumerate(old.workers)
        ]
        at = target
        if new.tensors and new.tensors != old.tensors:
            raise Fault("tensors", f"differ from those of {source}")
        places = _hosts(places, new)
        return problem(
            tensors.tensors,
            places,
            held,
            [tensors.holdings(w.holds, f"workers[{k}].holds") for k, w in enumerate(new.workers)],
            groups=groups(new.groups or (), len(new.workers), "groups"),
            objective=objective(new.objective or ["bytes", "inter"]),
            limits=limits(new.limits or LimitSpec()),
            near=True,
            balanced=True,
        )
    except Fault as fault:
        raise UserMistake(f"{at}: {fault}", fix="mend the layout file; docs/plan.md has the format") from fault


def _read(path: Path) -> LayoutSpec:
    try:
        spec = converted(read_json(path), LayoutSpec)
        if spec.format != FORMAT:
            raise Fault("format", f"is {spec.format!r}, not {FORMAT!r}")
    except Fault as fault:
        raise UserMistake(f"{path}: {fault}", fix="give a layout file; docs/plan.md has the format") from fault
    return spec


def _places(spec: LayoutSpec) -> list[Device]:
    """The workers' devices in order, then spare ones."""
    named = []
    for k, worker in enumerate(spec.workers):
        if worker.device is None or worker.node is None:
            raise Fault(f"workers[{k}]", "needs device and node")
        named.append(DeviceSpec(worker.device, worker.node, worker.state))
    devices(named, "workers")
    known = {each.id for each in named}
    return devices([*named, *(each for each in spec.devices or () if each.id not in known)])


def _hosts(places: list[Device], new: LayoutSpec) -> list[Device]:
    """All devices, those outside of the new layout's as leaving."""
    listed = new.devices
    if listed is None and all(worker.device and worker.node for worker in new.workers):
        listed = [DeviceSpec(str(w.device), str(w.node), w.state) for w in new.workers]
    if listed is None:
        return places
    allowed = {device.id: device for device in devices(listed)}
    out = []
    for place in places:
        if place.id in allowed:
            out.append(allowed.pop(place.id)._replace(node=place.node))
        else:
            out.append(place if place.state == "dead" else place._replace(state="leaving"))
    return out + list(allowed.values())
