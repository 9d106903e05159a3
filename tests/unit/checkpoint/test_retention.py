from __future__ import annotations

import os
from pathlib import Path

import pytest
from drafts import MakeDraft

from slurm_elastic.checkpoint.publish import publish
from slurm_elastic.checkpoint.retention import prune
from slurm_elastic.errors import CheckpointError


def public(directory: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in directory.glob("step-*"))


def test_only_the_newest_stay(tmp_path: Path, make_draft: MakeDraft) -> None:
    for step in (100, 200, 300, 400):
        publish(tmp_path, make_draft(step), step)

    pruned = prune(tmp_path, 2, generation=1)

    assert public(tmp_path) == [300, 400]
    assert pruned.removed == ("step-00000200", "step-00000100") and pruned.warnings == ()


def test_the_one_that_latest_names_stays_however_old(tmp_path: Path, make_draft: MakeDraft) -> None:
    for step in (100, 200, 300):
        publish(tmp_path, make_draft(step), step)
    (tmp_path / "latest").write_text("step-00000100\n")

    prune(tmp_path, 1, generation=1)

    assert public(tmp_path) == [100, 300]


def test_drafts_of_dead_generations_go_and_those_of_the_living_stay(tmp_path: Path, make_draft: MakeDraft) -> None:
    publish(tmp_path, make_draft(100), 100)
    make_draft(200, generation=1)
    living = make_draft(200, generation=2)

    prune(tmp_path, 1, generation=2)

    assert [path.name for path in tmp_path.glob(".draft-*")] == [living]


def test_of_the_damaged_ones_only_the_last_is_kept(tmp_path: Path) -> None:

    for age, name in enumerate(["bad-step-00000300", "bad-step-00000100", "bad-step-00000200"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))

    prune(tmp_path, 1, generation=1)

    assert [path.name for path in tmp_path.glob("bad-*")] == ["bad-step-00000300"]


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="at least 1"):
        prune(tmp_path, 0, generation=1)
