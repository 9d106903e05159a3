from __future__ import annotations

import pytest

from slurm_elastic.config_model import Base, Elastic, Run, RunConfig
from slurm_elastic.machine.actions import Member, RecordTransition
from slurm_elastic.machine.policy import policy_of
from slurm_elastic.machine.state import Allocation, Generation, State
from slurm_elastic.observe.status import CheckpointStatus, Figures, SupervisorStatus


@pytest.fixture
def state() -> State:
    """Two base nodes and a companion train as generation 3; a second companion waits in Slurm's queue."""
    config = RunConfig(
        run=Run(name="gpt", dir="/r", command=("python", "t.py")), base=Base(nodes=2), elastic=Elastic(max_nodes=5)
    )
    members = (Member(node="n1", job_id=1), Member(node="n2", job_id=1), Member(node="n3", job_id=2))
    return State(
        policy=policy_of(config),
        phase="training",
        reason="3 nodes train",
        last_number=3,
        has_trained=True,
        before=members[:2],
        live=Generation(number=3, members=members, launched_at=90.0, opened_at=95.0),
        allocations=(
            Allocation(job_id=1, role="base", contact="joined", nodes=("n1", "n2"), qos="high"),
            Allocation(job_id=2, role="companion", contact="joined", nodes=("n3",), qos="scavenger"),
            Allocation(job_id=3, role="companion", contact="pending", qos="scavenger"),
        ),
        last_transition=RecordTransition(
            kind="grow", mode="relaunch", reason="idle nodes", from_workers=2, to_workers=3, generation=3, stall_s=1.5
        ),
    )


@pytest.fixture
def figures() -> Figures:
    return Figures(
        run="gpt",
        run_dir="/r",
        now=1000.0,
        supervisor=SupervisorStatus(epoch=2, host="n1", pid=77, time=1000.0, started_at=10.0),
        step=120,
        total_steps=500,
        step_time=999.0,
        steps_per_s=4.0,
        loss=2.5,
        checkpoint=CheckpointStatus(step=100, time=940.0, name="step-00000100"),
        last_transition_at=900.0,
    )
