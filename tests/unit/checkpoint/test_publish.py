from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from drafts import MakeDraft, draft_maker
from kill_points import killed_at_every_change

from slurm_elastic.checkpoint.publish import newest, publish, read_latest
from slurm_elastic.checkpoint.retention import prune
from slurm_elastic.errors import CheckpointError, CheckpointVersionError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_published_draft_is_the_newest_checkpoint_and_latest_names_it(tmp_path: Path, make_draft: MakeDraft) -> None:
    path = publish(tmp_path, make_draft(100), 100)

    found = newest(tmp_path)
    assert path == tmp_path / "step-00000100"
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.checkpoint.name, found.warnings) == (100, "step-00000100", ())
    assert names(tmp_path) == ["latest", "step-00000100"]
    assert read_latest(tmp_path) == "step-00000100"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert newest(tmp_path / "absent").checkpoint is None
    assert newest(tmp_path).checkpoint is None


def test_publishing_again_after_a_crash_changes_nothing(tmp_path: Path, make_draft: MakeDraft) -> None:
    draft = make_draft(100)
    publish(tmp_path, draft, 100)
    (tmp_path / "latest").unlink()

    publish(tmp_path, draft, 100)

    assert read_latest(tmp_path) == "step-00000100"


def test_a_disk_too_full_to_write_latest_keeps_nobody_from_resuming(
    tmp_path: Path, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, make_draft(100), 100)
    (tmp_path / "latest").write_text("step-00000050\n")

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("slurm_elastic.checkpoint.publish.replace_text", full)
    found = newest(tmp_path)

    assert found.checkpoint is not None and found.checkpoint.step == 100
    assert "No space left" in found.warnings[0]


def test_a_second_save_of_the_same_state_is_dropped(tmp_path: Path, make_draft: MakeDraft) -> None:
    publish(tmp_path, make_draft(100), 100)

    publish(tmp_path, make_draft(100, generation=2, content=b"same state, other bytes"), 100)

    assert names(tmp_path) == ["latest", "step-00000100"]
    assert newest(tmp_path).checkpoint is not None


def test_other_content_under_a_public_step_is_refused(tmp_path: Path, make_draft: MakeDraft) -> None:
    publish(tmp_path, make_draft(100), 100)
    other = make_draft(100, generation=2, samples=1)

    with pytest.raises(CheckpointError, match="already public with other content"):
        publish(tmp_path, other, 100)
    assert (tmp_path / other).exists()


def test_a_damaged_public_checkpoint_makes_way_for_a_new_save_of_its_step(
    tmp_path: Path, make_draft: MakeDraft
) -> None:
    publish(tmp_path, make_draft(100), 100)
    (tmp_path / "step-00000100" / ".metadata").unlink()

    publish(tmp_path, make_draft(100, generation=2), 100)

    assert names(tmp_path) == ["bad-step-00000100", "latest", "step-00000100"]


@pytest.mark.parametrize("draft", ["step-00000100", "../elsewhere", "", "/etc", ".draft-gen0001-step00000100/.."])
def test_only_the_name_of_a_draft_can_be_published(tmp_path: Path, draft: str) -> None:
    with pytest.raises(CheckpointError, match="not the name of a draft"):
        publish(tmp_path, draft, 100)


def test_an_incomplete_draft_and_one_of_another_step_are_refused(tmp_path: Path, make_draft: MakeDraft) -> None:
    with pytest.raises(CheckpointError, match="is of step 100, not 99"):
        publish(tmp_path, make_draft(100), 99)
    draft = make_draft(200)
    (tmp_path / draft / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="never completed"):
        publish(tmp_path, draft, 200)
    assert newest(tmp_path).checkpoint is None


def test_a_corrupt_checkpoint_is_marked_bad_and_the_one_before_is_used_loudly(
    tmp_path: Path, make_draft: MakeDraft
) -> None:
    for step in (100, 200, 300):
        publish(tmp_path, make_draft(step), step)
    (tmp_path / "step-00000300" / "__0_0.distcp").write_bytes(b"Weights300")
    shutil.rmtree(tmp_path / "step-00000200")
    (tmp_path / "step-00000200").mkdir()

    found = newest(tmp_path)

    assert found.checkpoint is not None and found.checkpoint.step == 100
    assert len(found.warnings) == 2
    assert "step 300 cannot be used" in found.warnings[0] and "bad-step-00000300" in found.warnings[0]
    assert names(tmp_path) == ["bad-step-00000200", "bad-step-00000300", "latest", "step-00000100"]
    assert read_latest(tmp_path) == "step-00000100"


def test_a_reader_that_does_not_own_the_directory_changes_nothing(tmp_path: Path, make_draft: MakeDraft) -> None:
    for step in (100, 200):
        publish(tmp_path, make_draft(step), step)
    (tmp_path / "step-00000200" / ".metadata").unlink()
    before = names(tmp_path)

    found = newest(tmp_path, mark_bad=False)

    assert found.checkpoint is not None and found.checkpoint.step == 100
    assert names(tmp_path) == before


def test_a_checkpoint_of_another_release_is_neither_skipped_nor_marked_bad(
    tmp_path: Path, make_draft: MakeDraft
) -> None:
    for step in (100, 200):
        publish(tmp_path, make_draft(step), step)
    (tmp_path / "step-00000200" / "manifest.json").write_text('{"version":2}')

    with pytest.raises(CheckpointVersionError):
        newest(tmp_path)
    assert "step-00000200" in names(tmp_path)


def test_a_full_disk_while_publishing_is_a_clear_error_and_loses_nothing(tmp_path: Path, make_draft: MakeDraft) -> None:
    publish(tmp_path, make_draft(100), 100)
    draft = make_draft(200)

    (tmp_path / f".latest.{os.getpid()}").symlink_to("/dev/full")

    with pytest.raises(CheckpointError, match="No space left"):
        publish(tmp_path, draft, 200)
    (tmp_path / f".latest.{os.getpid()}").unlink()
    found = newest(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 200
    assert read_latest(tmp_path) == "step-00000200"


@pytest.mark.parametrize("drafted_twice", [False, True])
def test_killed_at_any_change_of_save_publish_and_prune_there_is_always_a_loadable_checkpoint(
    tmp_path: Path, drafted_twice: bool
) -> None:
    directory = tmp_path / "checkpoints"
    make_draft = draft_maker(directory)

    def before() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for step in (100, 200, 300):
            publish(directory, make_draft(step), step)
        if drafted_twice:
            publish(directory, make_draft(400, generation=2), 400)

    def one_cycle() -> None:
        publish(directory, make_draft(400, generation=3), 400)
        prune(directory, 1, generation=3)

    kills = 0
    for kill in killed_at_every_change(before, one_cycle):
        kills = kill
        found = newest(directory)
        assert found.checkpoint is not None and found.checkpoint.step in (300, 400), names(directory)
        assert found.warnings == ()
        if found.checkpoint.step == 300:
            publish(directory, make_draft(400, generation=4), 400)
        prune(directory, 1, generation=4)
        assert names(directory) == ["latest", "step-00000400"]

    assert kills > 20, "save, publish and prune make more changes than that: some kills did not fire"
