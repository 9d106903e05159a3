"""State taken off live objects, carried into a world of another size or kind, and trained on, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.capture_worlds import Kind, buffers, transition
from tests.training.worlds import WorldOfProcesses

pytestmark = pytest.mark.training

TRANSITIONS = [
    (Kind("ddp", (4,)), Kind("ddp", (2,)), 2),
    (Kind("ddp", (2,), "sgd"), Kind("ddp", (4,), "sgd"), 2),
    (Kind("ddp", (2,)), Kind("ddp", (4,)), 0),  # no optimizer state yet: none may be there afterwards
    (Kind("fsdp", (4,)), Kind("fsdp", (3,)), 2),
    (Kind("fsdp", (3,), "sgd"), Kind("fsdp", (4,), "sgd"), 1),
    (Kind("hsdp", (2, 2)), Kind("fsdp", (3,)), 2),
    (Kind("fsdp", (3,)), Kind("hsdp", (2, 2)), 2),
    (Kind("fsdp_tp", (2, 2)), Kind("fsdp", (4,)), 2),
    (Kind("fsdp", (3,)), Kind("fsdp_tp", (2, 2)), 2),
    (Kind("tp", (2,)), Kind("fsdp_tp", (2, 2)), 2),
    (Kind("ddp", (4,)), Kind("fsdp", (3,)), 1),
    (Kind("pp", (2, 2)), Kind("pp", (2, 1)), 2),
    (Kind("pp", (2, 2), "sgd"), Kind("fsdp", (3,), "sgd"), 2),
]


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    TRANSITIONS,
    ids=lambda one: f"{one.name}{'x'.join(map(str, one.mesh))}-{one.optimizer}" if isinstance(one, Kind) else str(one),
)
def test_training_goes_on_in_another_world_as_if_it_had_never_left(
    old: Kind, new: Kind, steps: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    codes = WorldOfProcesses(4, transition, old, new, steps, log=log).wait(100.0)

    assert codes == [0] * 4, log.read_text()


def test_statistics_that_ranks_keep_apart_are_shared_before_they_count_as_equal(tmp_path: Path) -> None:
    log = tmp_path / "log"

    codes = WorldOfProcesses(2, buffers, log=log).wait(100.0)

    assert codes == [0] * 2, log.read_text()
