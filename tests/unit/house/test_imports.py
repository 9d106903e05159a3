"""Import arrows point downwards only, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "slurm_elastic"

# Lower number = lower layer. A module may import from its own layer or below.
LAYER = {
    "errors": 0,
    "units": 0,
    "signals": 0,
    "rundir": 1,
    "config": 1,
    "machine": 1,
    "slurm": 2,
    "wire": 2,
    "checkpoint": 2,
    "migrate": 2,
    "observe": 2,
    "testing": 3,
    "training": 3,
    "agent": 3,
    "supervisor": 3,
    "testbed": 3,
    "demo": 4,
    "cli": 5,
}
IMPURE = {"os", "time", "signal", "subprocess", "logging", "torch", "mpi4py", "asyncio", "socket"}
HEAVY_ALLOWED = {"training", "checkpoint", "demo"}
# What of migrate/ touches memory; all else there only thinks, and must not pull any of these in.
TORCH_IN_MIGRATE = ("capture", "parts", "checksum", "execute", "store", "transport")
PURE_IN_MIGRATE = {"capture_boxes.py", "capture_layout.py", "execute_schedule.py", "store_boxes.py"}
MPI_IN_MIGRATE = "transport_mpi.py"


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "py.typed")


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    name = first.removesuffix(".py")
    return "config" if name.startswith("config") else name


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_downwards(path: Path) -> None:
    here = part_of(path)
    if here == "__init__":
        return
    for name in imports(path):
        if not name.startswith("slurm_elastic."):
            continue
        there = name.split(".")[1]
        there = "config" if there.startswith("config") else there
        if there not in LAYER:
            continue

        assert LAYER[there] <= LAYER[here], f"{here} must not import {name}"


@pytest.mark.parametrize("path", [p for p in modules() if part_of(p) == "machine"], ids=lambda path: path.name)
def test_the_decision_machine_is_pure(path: Path) -> None:
    assert not IMPURE & {name.split(".")[0] for name in imports(path)}


def moves(path: Path) -> bool:
    """Whether this module is one of those of migrate/ that handle tensors."""
    return part_of(path) == "migrate" and path.name.startswith(TORCH_IN_MIGRATE) and path.name not in PURE_IN_MIGRATE


@pytest.mark.parametrize(
    "path", [p for p in modules() if part_of(p) not in HEAVY_ALLOWED], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_torch_and_mpi_are_imported_only_where_training_is(path: Path) -> None:
    allowed = ({"torch"} if moves(path) else set()) | ({"mpi4py"} if path.name == MPI_IN_MIGRATE else set())

    assert not {"torch", "mpi4py"} & {name.split(".")[0] for name in imports(path)} - allowed


@pytest.mark.parametrize(
    "path", [p for p in modules() if part_of(p) == "migrate" and not moves(p)], ids=lambda path: path.name
)
def test_the_planner_is_pure(path: Path) -> None:
    moving = {f"slurm_elastic.migrate.{p.stem}" for p in modules() if moves(p)}

    assert not IMPURE & {name.split(".")[0] for name in imports(path)}
    assert not moving & set(imports(path))
