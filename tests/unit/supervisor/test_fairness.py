"""Thousands of workers, or of facts, at once: whoever else waits for the loop has its turn meanwhile."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from slurm_elastic.machine.actions import Member, OpenGate
from slurm_elastic.machine.events import NodeReady
from slurm_elastic.supervisor import desk as desk_module
from slurm_elastic.supervisor.desk import TrainingDesk
from slurm_elastic.supervisor.gates import make_plan
from slurm_elastic.supervisor.loop import SLICE_S, Loop
from slurm_elastic.wire import messages as m
from tests.unit.supervisor.links import worker_hello

WORKERS = 3 * desk_module.TOLD_AT_ONCE


class Turns:
    """Counts how often the loop came round."""

    def __init__(self) -> None:
        self.count = 0
        asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._again)


class Told:
    """The workers of a generation; `turns` is noted with each gate that is sent."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.turns: Turns | None = None

    def send_to(self, generation: int, node: str, local_rank: int, message: m.Message) -> None:
        assert self.turns is not None
        self.at.append(self.turns.count)


def open_gate(is_live: list[bool]) -> Told:
    told = Told()
    course: Any = SimpleNamespace(epoch=1, is_live=lambda generation: is_live.pop(0) if is_live else True)
    nothing: Any = None
    plan = make_plan(1, (Member(node="n1", job_id=1),), worker_hello(), per_node=WORKERS, resume=("", 0))
    workers: Any = told
    desk = TrainingDesk(nothing, course, workers, *[nothing] * 6, plan=plan)

    async def opened() -> None:
        told.turns = Turns()
        await desk.open_gate(OpenGate(generation=1, members=(Member(node="n1", job_id=1),)))

    asyncio.run(opened())
    return told


def test_a_gate_for_thousands_is_opened_in_parts() -> None:
    told = open_gate([])

    assert len(told.at) == WORKERS
    most = max(told.at.count(turn) for turn in set(told.at))
    assert most == desk_module.TOLD_AT_ONCE


def test_nobody_is_told_of_a_gate_whose_generation_ended_meanwhile() -> None:
    assert len(open_gate([True, False]).at) == 2 * desk_module.TOLD_AT_ONCE


def test_a_flood_of_facts_leaves_turns_to_others() -> None:
    flood = 20

    over: Any = "over"

    class Slow(Loop):
        taken = 0

        def _take(self, fact: Any) -> None:
            until = time.monotonic() + SLICE_S
            while time.monotonic() < until:
                pass
            Slow.taken += 1
            if Slow.taken == flood:
                self.effects.ending = over

    async def done(*_: object) -> None:
        return None

    effects: Any = SimpleNamespace(ending=None)
    desk: Any = SimpleNamespace(records=SimpleNamespace(settled=done))
    nothing: Any = None

    async def work() -> int:
        course: Any = SimpleNamespace(facts=asyncio.Queue())
        end: Any = SimpleNamespace(carry_out=done)
        for _ in range(flood):
            course.facts.put_nowait(NodeReady(generation=1, node="n1"))
        loop = Slow(nothing, course, nothing, nothing, nothing, nothing, desk, effects, nothing, nothing, nothing, end)
        turns = Turns()
        await loop._drive()
        return turns.count

    assert asyncio.run(work()) >= flood - 1
