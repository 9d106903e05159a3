from __future__ import annotations

from slurm_elastic.machine.events import GenerationStepping
from slurm_elastic.supervisor.progress import LEVEL0_GRACE_S, Progress
from slurm_elastic.wire import messages as m


def steps(generation: int, *numbers: int, at: float) -> m.Steps:
    done = tuple(
        m.StepDone(step=n, world=2, samples=8, samples_sha256="x", loss=1.0, time=at + i) for i, n in enumerate(numbers)
    )
    return m.Steps(generation=generation, steps=done, total_steps=100)


def test_the_stall_lies_between_the_last_step_before_and_the_first_after() -> None:
    facts: list[object] = []
    progress = Progress(facts.append)
    progress.gate_opened(1, 0, now=5)
    progress.steps(steps(1, 1, 2, 3, at=10), now=20)
    progress.gate_opened(2, 3, now=15)
    progress.steps(steps(2, 4, 5, at=19), now=30)

    assert facts == [
        GenerationStepping(generation=1, step=1),
        GenerationStepping(generation=2, step=4, stall_s=7.0, steps_lost=0),
    ]


def test_steps_beyond_the_checkpoint_are_lost() -> None:
    facts: list[GenerationStepping] = []
    progress = Progress(facts.append)
    progress.gate_opened(1, 0, now=5)
    progress.steps(steps(1, *range(1, 15), at=10), now=30)
    progress.gate_opened(2, 10, now=40)

    fresh = progress.steps(steps(2, 11, at=50), now=50)

    assert [done.step for done in fresh] == [11]
    assert facts[-1].steps_lost == 4


def test_a_message_that_comes_twice_counts_once() -> None:
    progress = Progress(lambda fact: None)
    progress.gate_opened(1, 0, now=5)
    progress.steps(steps(1, 1, 2, at=10), now=20)

    assert progress.steps(steps(1, 1, 2, at=10), now=21) == []
    assert progress.step == 2


def test_a_script_of_level_0_counts_as_training_after_a_while() -> None:
    facts: list[object] = []
    progress = Progress(facts.append)
    progress.gate_opened(1, 0, now=100)

    progress.tick(100 + LEVEL0_GRACE_S, trained=False)
    assert facts == []
    progress.tick(101 + LEVEL0_GRACE_S, trained=False)
    progress.tick(102 + LEVEL0_GRACE_S, trained=False)

    assert facts == [GenerationStepping(generation=1, step=0)]


def test_the_rate_is_of_this_generation() -> None:
    progress = Progress(lambda fact: None)
    progress.gate_opened(1, 0, now=5)
    progress.steps(steps(1, 1, 2, 3, at=10), now=20)
    assert progress.steps_per_s == 1.0

    progress.gate_opened(2, 3, now=20)

    assert progress.steps_per_s == 0.0
