from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.machine.actions import Member
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor.gates import gates, load_plan, make_plan, save_plan
from tests.unit.supervisor.links import worker_hello

MEMBERS = (Member(node="n2", job_id=1), Member(node="n1", job_id=1), Member(node="n9", job_id=8))


def test_ranks_follow_the_order_of_the_members() -> None:
    plan = make_plan(3, MEMBERS, worker_hello(3, "n2"), per_node=2, resume=("step-00000010", 10))

    told = dict(gates(plan, epoch=5))

    ranks = {place: (gate.global_rank, gate.node_rank, gate.local_rank) for place, gate in told.items()}
    assert ranks == {
        ("n2", 0): (0, 0, 0),
        ("n2", 1): (1, 0, 1),
        ("n1", 0): (2, 1, 0),
        ("n1", 1): (3, 1, 1),
        ("n9", 0): (4, 2, 0),
        ("n9", 1): (5, 2, 1),
    }
    assert {(g.world_size, g.local_world_size, g.node_count, g.restart_count) for g in told.values()} == {(6, 2, 3, 2)}
    assert {(g.master_addr, g.master_port, g.resume, g.resume_step) for g in told.values()} == {
        ("10.0.0.2", 4711, "step-00000010", 10)
    }


def test_a_restarted_supervisor_says_the_same(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    plan = make_plan(3, MEMBERS, worker_hello(3, "n2"), per_node=2, resume=("", 0))
    assert load_plan(run) is None

    save_plan(run, plan)

    assert load_plan(run) == plan


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"gate\.json"):
        load_plan(RunDirectory(tmp_path))
