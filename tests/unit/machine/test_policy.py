from __future__ import annotations

import ast
from pathlib import Path

import pytest

import slurm_elastic.machine
from machine.world import policy
from slurm_elastic.config_model import Base, Elastic, Run, RunConfig
from slurm_elastic.machine.policy import policy_of


def config(**elastic: object) -> RunConfig:
    return RunConfig(
        run=Run(name="r", dir="/r", command=("python",)),
        base=Base(nodes=2),
        elastic=Elastic(**elastic),  # type: ignore[arg-type]
    )


def test_sizes_come_from_the_step() -> None:
    made = policy_of(config(min_nodes=2, max_nodes=7, replica_increment_step=2))

    assert made.allowed_nodes == (2, 4, 6)
    assert made.max_nodes == 6
    assert made.min_nodes == 2


def test_sizes_come_from_the_list() -> None:
    assert policy_of(config(min_nodes=1, max_nodes=8, replica_discrete_values=(8, 2, 3))).allowed_nodes == (2, 3, 8)


@pytest.mark.parametrize(("nodes", "size"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 4)])
def test_the_largest_size_that_fits(nodes: int, size: int) -> None:
    assert policy(allowed_nodes=(2, 4)).size_for(nodes) == size


def test_the_machine_has_no_clock_and_no_hands() -> None:
    forbidden = {"os", "time", "signal", "subprocess", "logging", "asyncio", "socket", "random", "torch", "datetime"}
    for path in Path(slurm_elastic.machine.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, path
