from __future__ import annotations

from pathlib import Path

import pytest
from drafts import MakeDraft

from slurm_elastic.checkpoint.manifest import read_manifest, verify
from slurm_elastic.errors import CheckpointError, CheckpointVersionError


def test_a_manifest_reads_back_what_was_written(tmp_path: Path, make_draft: MakeDraft) -> None:
    manifest = verify(tmp_path / make_draft(12, generation=3))

    assert (manifest.about.step, manifest.about.generation, manifest.about.world) == (12, 3, 2)
    assert manifest.about.cursor == {"samples": 96}
    assert manifest.size_bytes == len(b"weights12") + len(b"index")


def test_a_changed_byte_is_found_only_by_the_thorough_check(tmp_path: Path, make_draft: MakeDraft) -> None:
    draft = tmp_path / make_draft(12)
    (draft / "__0_0.distcp").write_bytes(b"Weights12")

    verify(draft, thorough=False)
    with pytest.raises(CheckpointError, match=r"__0_0.distcp has changed"):
        verify(draft)


def test_a_shortened_and_a_missing_file_are_found_by_the_quick_check(tmp_path: Path, make_draft: MakeDraft) -> None:
    draft = tmp_path / make_draft(12)
    (draft / "__0_0.distcp").write_bytes(b"weig")
    with pytest.raises(CheckpointError, match="has 4 bytes; its manifest says 9"):
        verify(draft, thorough=False)

    (draft / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        verify(draft, thorough=False)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version":1}', '{"version":1,"about":{"step":"x"},"files":{}}', "\udcff", '{"files":{}}'],
)
def test_a_manifest_that_is_none_is_an_error_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(CheckpointError, match=r"manifest.json") as raised:
        read_manifest(tmp_path)
    assert not isinstance(raised.value, CheckpointVersionError)


def test_a_manifest_of_another_release_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"version":7}')

    with pytest.raises(CheckpointVersionError, match="version 7"):
        read_manifest(tmp_path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, make_draft: MakeDraft) -> None:
    draft = tmp_path / make_draft(1)
    path = draft / "manifest.json"
    path.write_text(path.read_text().replace("__0_0.distcp", "../../../etc/passwd"))

    with pytest.raises(CheckpointError, match="not a file of this directory"):
        verify(draft)
