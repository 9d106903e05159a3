"""Small parts: addresses, time limits, the crew, companions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown, UserMistake
from slurm_elastic.machine.actions import SubmitCompanion
from slurm_elastic.machine.events import (
    CompanionRefused,
    CompanionSubmitted,
    JobRecord,
    JobsSeen,
    NoticeReceived,
    SlurmSilent,
)
from slurm_elastic.slurm.api import BatchRequest
from slurm_elastic.supervisor import companions as companions_module
from slurm_elastic.supervisor.address import choose_address
from slurm_elastic.supervisor.clock import SteadyClock
from slurm_elastic.supervisor.companions import Companions
from slurm_elastic.supervisor.crew import Crew
from slurm_elastic.supervisor.limits import MARGIN_S, TimeLimits


@pytest.mark.parametrize("jump_s", [300.0, -300.0])
def test_a_clock_that_is_set_fires_no_timeout_and_is_followed_in_time(jump_s: float) -> None:
    true, off = 1000.0, 0.0
    clock = SteadyClock(wall=lambda: true + off, monotonic=lambda: true - 900.0)
    assert clock() == 1000.0
    off = jump_s
    true += 10.0
    assert abs(clock() - 1010.0) <= 5.0
    for _ in range(600):
        before = clock()
        true += 1.0
        assert 0.5 <= clock() - before <= 1.5

    assert clock() == pytest.approx(true + off)


def test_the_named_interface_decides() -> None:
    assert choose_address("lo") == "127.0.0.1"


def test_an_unknown_interface_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UserMistake, match=r"control\.interface: 'nope0'.*\n.*lo \(127"):
        choose_address("nope0")


def test_without_a_name_an_address_is_found() -> None:
    assert choose_address().count(".") == 3


def test_a_time_limit_is_a_notice_once_per_end_time() -> None:
    facts: list[object] = []
    limits = TimeLimits(facts.append, poll_s=15)
    limits.seen(JobsSeen(jobs=(JobRecord(job_id=7, state="RUNNING", end_time=1000.0),)))

    limits.tick(1000 - 16 - MARGIN_S - 15, save_p95_s=10)
    assert facts == []
    limits.tick(1000 - 14 - MARGIN_S - 15, save_p95_s=10)
    limits.tick(1000 - 10, save_p95_s=10)

    assert facts == [NoticeReceived(job_id=7, source="time limit", deadline=1000.0)]


def test_a_preempted_job_has_its_own_notice() -> None:
    facts: list[object] = []
    limits = TimeLimits(facts.append, poll_s=15)
    limits.seen(JobsSeen(jobs=(JobRecord(job_id=7, state="RUNNING", end_time=1000.0, preempt_time=990.0),)))

    limits.tick(999, save_p95_s=10)

    assert facts == []


def test_the_first_failure_ends_the_crew() -> None:
    async def break_down() -> None:
        raise OSError("no space left")

    async def for_ever() -> None:
        await asyncio.sleep(60)

    async def work() -> None:
        crew = Crew()
        crew.spawn(break_down())
        try:
            await crew.run(for_ever())
        finally:
            await crew.dismiss()

    with pytest.raises(OSError, match="no space"):
        asyncio.run(work())


class ScriptedSlurm:
    """Answers submissions from a list."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    def submit(self, request: BatchRequest) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def submitted(slurm: ScriptedSlurm) -> list[object]:
    facts: list[object] = []
    companions = Companions(slurm, lambda order: BatchRequest(script=Path("x")), facts.append, asyncio.to_thread)
    asyncio.run(companions.submit(SubmitCompanion(token="companion-00001", nodes=1)))
    return facts


def test_a_companion_is_submitted() -> None:
    assert submitted(ScriptedSlurm(44)) == [CompanionSubmitted(token="companion-00001", job_id=44)]


@pytest.mark.parametrize("retryable", [True, False])
def test_a_refusal_says_whether_it_is_for_good(retryable: bool) -> None:
    refusal = SlurmCommandError(("sbatch",), 1, "Invalid qos specification\n", retryable=retryable)

    expected = CompanionRefused(token="companion-00001", reason="Invalid qos specification", permanent=not retryable)
    assert submitted(ScriptedSlurm(refusal)) == [expected]


def test_silence_is_no_refusal_the_same_token_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions_module, "FIRST_PAUSE_S", 0.0)  # no waiting in a test

    facts = submitted(ScriptedSlurm(SlurmUnknown("away"), 44))

    assert facts == [SlurmSilent(reason="away"), CompanionSubmitted(token="companion-00001", job_id=44)]
