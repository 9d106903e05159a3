"""Who sits where in a generation that is made by a regroup: decided once, written to <run>/regroup.json first.

A supervisor that restarts meanwhile must tell the remaining workers exactly the same, as with a gate.
"""

from __future__ import annotations

import msgspec

from slurm_elastic.machine.actions import Member, Regroup
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.supervisor import plan_file
from slurm_elastic.wire import messages as m


class RegroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of one regroup are told, and how far it is."""

    generation: int
    before: int
    seats: tuple[m.Seat, ...]  # by global rank
    departing: tuple[m.Seat, ...] = ()
    reason: str = ""
    planned: bool = True
    deadline: float | None = None
    store_addr: str = ""
    store_port: int = 0
    ledger_step: int = 0
    begun: bool = False  # the new rank 0 is in its place; from then on:
    opened: float = 0.0  # Unix time
    step: int = 0  # it goes on after this one
    before_step: int = 0  # the last one committed before, and when
    before_time: float = 0.0


def make_plan(order: Regroup, first: m.WorkerHello, *, per_node: int, ledger_step: int) -> RegroupPlan:
    """`first`: the hello of the worker in the first seat, in whose store all meet."""
    return RegroupPlan(
        generation=order.generation,
        before=order.before,
        seats=_seats(order.members, per_node),
        departing=_seats(order.departing, per_node),
        reason=order.reason,
        planned=order.planned,
        deadline=order.deadline,
        store_addr=first.address,
        store_port=first.store_port,
        ledger_step=ledger_step,
    )


def regroup_message(plan: RegroupPlan, epoch: int) -> m.Regroup:
    return m.Regroup(
        epoch=epoch,
        generation=plan.generation,
        before=plan.before,
        seats=plan.seats,
        departing=plan.departing,
        reason=plan.reason,
        planned=plan.planned,
        deadline=plan.deadline,
        store_addr=plan.store_addr,
        store_port=plan.store_port,
        ledger_step=plan.ledger_step,
    )


def standby_gate(hello: m.WorkerHello, epoch: int, per_node: int) -> m.Gate:
    """Past the gate, but for a seat: the ranks are those of a world of its own node, until it gets others."""
    return m.Gate(
        epoch=epoch,
        generation=hello.generation,
        global_rank=hello.local_rank,
        world_size=per_node,
        local_rank=hello.local_rank,
        local_world_size=per_node,
        node_rank=0,
        node_count=1,
        master_addr=hello.address,
        master_port=hello.port,
        restart_count=hello.generation - 1,
        standby=True,
    )


def seat_of(hello: m.WorkerHello) -> m.Seat:
    return m.Seat(launch=hello.launch or hello.generation, node=hello.node, local_rank=hello.local_rank)


def save_plan(run: RunDirectory, plan: RegroupPlan) -> None:
    plan_file.save(run.path / "regroup.json", plan)


def load_plan(run: RunDirectory) -> RegroupPlan | None:
    """The plan of the last regroup; None before the first."""
    return plan_file.load(run.path / "regroup.json", RegroupPlan)


def _seats(members: tuple[Member, ...], per_node: int) -> tuple[m.Seat, ...]:
    return tuple(
        m.Seat(launch=member.launch, node=member.node, local_rank=local_rank)
        for member in members
        for local_rank in range(per_node)
    )
