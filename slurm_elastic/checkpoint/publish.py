"""Making a checkpoint public, and finding the newest one that can be loaded.

Order, so that `kill -9` anywhere leaves a loadable checkpoint:
draft written and fsynced by its writers → manifest → `publish`: sizes checked, one rename, `latest` moves →
`retention.prune`. All of it is repeatable. Only one process may call these (the supervisor; without one, rank 0).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.checkpoint import layout
from slurm_elastic.checkpoint.manifest import About, Manifest, verify
from slurm_elastic.errors import CheckpointError, CheckpointVersionError
from slurm_elastic.rundir import replace_text, sync_directory


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A public checkpoint that verified."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.about.step

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True, slots=True)
class Found:
    """`checkpoint`: the newest loadable one, None when there is none. `warnings`: to be shown loudly."""

    checkpoint: Checkpoint | None
    warnings: tuple[str, ...] = ()


def publish(directory: Path, draft: str, step: int) -> Path:
    """Make the complete draft `draft` (a name inside `directory`) public as `step`; returns its final path.

    After a crash in between, the same call finishes the work. If the same state (step, cursor, settings) is already
    public, that one stays and the draft is dropped. Raises CheckpointError when the draft is incomplete or of
    another step, or when other content is already public under this step; nothing public is touched then.
    """
    source = _inside(directory, draft)
    target = directory / layout.step_name(step)
    try:
        if target.exists() and not _is_whole(target):
            _mark_bad(target, step)
        if target.exists():
            _finish_earlier(source, target)
        else:
            _check_step(verify(source, thorough=False), source, step)
            sync_directory(source)
            source.rename(target)
            sync_directory(directory)
        replace_text(directory / layout.LATEST, target.name + "\n")
    except OSError as broken:
        raise CheckpointError(
            f"cannot publish {source} as {target.name}: {broken.strerror}", fix="check space and rights there"
        ) from broken
    return target


def newest(directory: Path, *, thorough: bool = True, mark_bad: bool = True) -> Found:
    """The newest public checkpoint that verifies; those that do not are renamed to bad-step-... and warned about.

    One of another release raises CheckpointVersionError: going back silently would lose work.
    `thorough=False` checks sizes only. `mark_bad=False` renames nothing: for readers that do not own the directory.
    """
    warnings: list[str] = []
    for step, path in public_steps(directory):
        try:
            manifest = verify(path, thorough=thorough)
            _check_step(manifest, path, step)
        except CheckpointVersionError:
            raise
        except CheckpointError as broken:
            where = _mark_bad(path, step) if mark_bad else path
            warnings.append(f"checkpoint of step {step} cannot be used, trying the one before: {broken} (see {where})")
            continue
        if mark_bad:
            warnings += _point_latest_at(path)
        return Found(Checkpoint(path, manifest), tuple(warnings))
    return Found(None, tuple(warnings))


def public_steps(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of what is public, newest first, unverified. Empty when there is no such directory."""
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return []
    steps = [(step, path) for path in entries if (step := layout.step_of(path.name)) is not None]
    return sorted(steps, reverse=True)


def read_latest(directory: Path) -> str:
    """Name that `latest` holds; "" when there is none."""
    try:
        return (directory / layout.LATEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _inside(directory: Path, name: str) -> Path:
    """A peer names the draft: it must not lead out of the directory, nor name anything but a draft."""
    if layout.generation_of_draft(name) is None:
        raise CheckpointError(f"{name!r} is not the name of a draft checkpoint")
    return directory / name


def _check_step(manifest: Manifest, path: Path, step: int) -> None:
    if manifest.about.step != step:
        raise CheckpointError(f"{path} is of step {manifest.about.step}, not {step}")


def _is_whole(target: Path) -> bool:
    try:
        verify(target, thorough=False)
    except CheckpointVersionError:
        raise
    except CheckpointError:
        return False
    return True


def _finish_earlier(source: Path, target: Path) -> None:
    """`target` is public already: by this very draft before a crash, or by another save of the same state."""
    public = verify(target, thorough=False)
    if source.exists():
        ours = verify(source, thorough=False)
        if _identity(ours.about) != _identity(public.about):
            raise CheckpointError(
                f"{target.name} is already public with other content than {source.name}",
                fix=f"move {target} away if it belongs to another run",
            )
        shutil.rmtree(source)
    sync_directory(target.parent)


def _identity(about: About) -> tuple[object, ...]:
    return about.step, about.cursor, about.config_hash


def _point_latest_at(path: Path) -> tuple[str, ...]:
    """`latest` is for people: what it cannot say (disk full) keeps nobody from resuming."""
    try:
        if read_latest(path.parent) != path.name:
            replace_text(path.parent / layout.LATEST, path.name + "\n")
    except OSError as broken:
        return (f"`latest` could not be made to name {path.name}, which is the newest checkpoint: {broken.strerror}",)
    return ()


def _mark_bad(path: Path, step: int) -> Path:
    attempt = 0
    while (target := path.with_name(layout.bad_name(step, attempt))).exists():
        attempt += 1
    try:
        path.rename(target)
        sync_directory(path.parent)
    except OSError:
        return path  # the warning that names it is what matters; it is skipped again next time
    return target
