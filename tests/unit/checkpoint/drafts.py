"""Complete drafts without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_elastic.checkpoint.layout import draft_name
from slurm_elastic.checkpoint.manifest import About, Manifest, file_facts, write_manifest

MakeDraft = Callable[..., str]


def draft_maker(directory: Path) -> MakeDraft:
    """Writes complete drafts as a saver would, without torch; each call returns the draft's name."""

    def make(step: int, *, generation: int = 1, content: bytes = b"weights", samples: int | None = None) -> str:
        draft = directory / draft_name(generation, step)
        draft.mkdir()
        (draft / "__0_0.distcp").write_bytes(content + str(step).encode())
        (draft / ".metadata").write_bytes(b"index")
        files = {name: file_facts(draft / name) for name in ("__0_0.distcp", ".metadata")}
        cursor = {"samples": step * 8 if samples is None else samples}
        about = About(step=step, generation=generation, world=2, cursor=cursor, config_hash="c0ffee")
        write_manifest(draft, Manifest(about=about, files=files))
        return draft.name

    return make
