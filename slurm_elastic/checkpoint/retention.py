"""Deleting what is no longer needed. Called only after a successful `publish`, by the process that publishes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.checkpoint import layout
from slurm_elastic.checkpoint.publish import public_steps, read_latest
from slurm_elastic.errors import CheckpointError

BAD_KEPT = 1  # one damaged checkpoint is enough to find out why


@dataclass(frozen=True, slots=True)
class Pruned:
    """Names that are gone, and what could not be deleted (never fatal: training goes on)."""

    removed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def prune(directory: Path, keep: int, *, generation: int) -> Pruned:
    """Keep the `keep` newest public checkpoints and the one that `latest` names; delete the older ones.

    Also deletes drafts of generations before `generation` (they are dead), older damaged ones, and what an
    interrupted deletion left. Raises CheckpointError for `keep` < 1: that would delete what we resume from.
    """
    if keep < 1:
        raise CheckpointError(f"checkpoint.keep is {keep}; at least 1 must stay")
    removed: list[str] = []
    warnings: list[str] = []
    for path in _expendable(directory, keep, generation):
        try:
            _delete(path)
            removed.append(path.name)
        except OSError as broken:
            warnings.append(f"cannot delete the old checkpoint {path}: {broken.strerror}")
    return Pruned(tuple(removed), tuple(warnings))


def _expendable(directory: Path, keep: int, generation: int) -> list[Path]:
    latest = read_latest(directory)
    old = [path for _, path in public_steps(directory)[keep:] if path.name != latest]
    entries = sorted(directory.iterdir())
    bad = [path for path in entries if layout.is_bad(path.name)]
    bad.sort(key=lambda path: path.stat().st_mtime)
    drafts = [path for path in entries if (layout.generation_of_draft(path.name) or generation) < generation]
    trash = [path for path in entries if layout.is_trash(path.name) or path.name.startswith(f".{layout.LATEST}.")]
    return trash + drafts + bad[:-BAD_KEPT] + old


def _delete(path: Path) -> None:
    """Rename first: a kill in the middle must not leave something that looks like a checkpoint."""
    if path.is_file():
        path.unlink()  # left where `latest` was being replaced
        return
    trash = path
    if not layout.is_trash(path.name):
        trash = path.with_name(layout.trash_name(path.name))
        if trash.exists():
            shutil.rmtree(trash)
        path.rename(trash)
    shutil.rmtree(trash)
