"""Who gets which rank, where the process group meets, and what is resumed: decided once per generation.

The plan is written to <run>/gate.json before the first worker hears of it: a supervisor that restarts while a gate
is being opened must tell the remaining workers exactly the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slurm_elastic.machine.actions import Member
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor import plan_file
from slurm_elastic.wire import messages as m


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of one generation are told."""

    generation: int
    nodes: tuple[str, ...]  # by node_rank
    workers_per_node: int
    master_addr: str
    master_port: int
    resume: str = ""
    resume_step: int = 0
    opened: float = 0.0  # Unix time
    before_step: int = 0  # the last one committed before this generation, and when
    before_time: float = 0.0
    trained: bool = False  # a script of this generation has reached the library: not level 0
    joined: bool = False  # all its workers have: after a restart of ours, one that does not come back is lost

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.workers_per_node


def make_plan(
    generation: int, members: tuple[Member, ...], first: m.WorkerHello, *, per_node: int, resume: tuple[str, int]
) -> GatePlan:
    """`first`: the hello of local rank 0 on the first member's node; the process group's store will live there.

    `resume`: name and step of the checkpoint that all load, ("", 0) for a start from nothing.
    """
    return GatePlan(
        generation=generation,
        nodes=tuple(member.node for member in members),
        workers_per_node=per_node,
        master_addr=first.address,
        master_port=first.port,
        resume=resume[0],
        resume_step=resume[1],
    )


def gates(plan: GatePlan, epoch: int) -> Iterator[tuple[tuple[str, int], m.Gate]]:
    """Node and local rank of each worker, and the message for it."""
    for node_rank, node in enumerate(plan.nodes):
        for local_rank in range(plan.workers_per_node):
            yield (node, local_rank), _gate(plan, epoch, node_rank, local_rank)


def gate_of(plan: GatePlan, epoch: int, node: str, local_rank: int) -> m.Gate | None:
    """The message for one worker; None when the plan has no place for it."""
    if node not in plan.nodes or not 0 <= local_rank < plan.workers_per_node:
        return None
    return _gate(plan, epoch, plan.nodes.index(node), local_rank)


def _gate(plan: GatePlan, epoch: int, node_rank: int, local_rank: int) -> m.Gate:
    return m.Gate(
        epoch=epoch,
        generation=plan.generation,
        global_rank=node_rank * plan.workers_per_node + local_rank,
        world_size=plan.world_size,
        local_rank=local_rank,
        local_world_size=plan.workers_per_node,
        node_rank=node_rank,
        node_count=len(plan.nodes),
        master_addr=plan.master_addr,
        master_port=plan.master_port,
        restart_count=plan.generation - 1,
        resume=plan.resume,
        resume_step=plan.resume_step,
    )


def save_plan(run: RunDirectory, plan: GatePlan) -> None:
    plan_file.save(run.path / "gate.json", plan)


def load_plan(run: RunDirectory) -> GatePlan | None:
    """The plan of the last gate that was opened; None before the first."""
    return plan_file.load(run.path / "gate.json", GatePlan)
