from __future__ import annotations

import asyncio

import pytest

from slurm_elastic.errors import SlurmUnknown
from slurm_elastic.machine.events import JobRecord, JobsSeen, SlurmSilent
from slurm_elastic.slurm.api import Job
from slurm_elastic.supervisor import polling
from slurm_elastic.supervisor.polling import Poller


async def no_answer() -> tuple[Job, ...]:
    raise SlurmUnknown("no answer within 30 s")


async def one_job() -> tuple[Job, ...]:
    return (Job(job_id=7, state="RUNNING", nodes=("n3",), comment="se:run:companion-00001", end_time=50.0),)


def test_silence_is_told_as_silence() -> None:
    facts: list[object] = []
    asyncio.run(Poller.create(no_answer, facts.append, 15).once())
    assert facts == [SlurmSilent(reason="no answer within 30 s")]


def test_an_answer_becomes_records() -> None:
    facts: list[object] = []
    asyncio.run(Poller.create(one_job, facts.append, 15).once())
    record = JobRecord(job_id=7, state="RUNNING", nodes=("n3",), end_time=50.0, token="se:run:companion-00001")
    assert facts == [JobsSeen(jobs=(record,))]


def test_a_poke_brings_the_next_question_forward_and_a_storm_of_pokes_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "SOONEST_S", 0.01)  # the real pace would make the test slow

    async def count() -> int:
        asked: list[object] = []
        poller = Poller.create(one_job, asked.append, 30.0)
        task = asyncio.create_task(poller.run())
        for _ in range(100):
            poller.poke()
            await asyncio.sleep(0.005)
        task.cancel()
        return len(asked)

    assert 3 <= asyncio.run(count()) <= polling.BURST + 1
