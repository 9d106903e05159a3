"""manifest.json of a checkpoint: what it is of, and size and SHA-256 of every file in it. The last file written.

A directory without a manifest is no checkpoint. The checksums find damage, not forgery: who may write the
directory may write a matching manifest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from slurm_elastic.checkpoint.layout import MANIFEST
from slurm_elastic.errors import CheckpointError, CheckpointVersionError
from slurm_elastic.rundir import replace_json

VERSION = 1
CHUNK_BYTES = 1 << 20


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is of. `cursor`: where in the data it stands (JSON values); equal for equal steps of a run."""

    step: int
    generation: int
    world: int
    cursor: dict[str, Any] = {}
    config_hash: str = ""
    saved_at: float = 0.0  # Unix seconds, for people


class FileFacts(msgspec.Struct, frozen=True):
    """Size and checksum of one file, taken by the rank that wrote it, after fsync."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    about: About
    files: dict[str, FileFacts]
    version: int = VERSION

    @property
    def size_bytes(self) -> int:
        return sum(facts.size_bytes for facts in self.files.values())


def file_facts(path: Path) -> FileFacts:
    """Size and SHA-256 of a file as it can be read back now. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileFacts(size, digest.hexdigest())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write it durably, as the last file of the draft. Raises OSError (disk full, ...)."""
    replace_json(directory / MANIFEST, msgspec.to_builtins(manifest))


def read_manifest(directory: Path) -> Manifest:
    """Raises CheckpointError when there is none or it is damaged, CheckpointVersionError for another release's."""
    path = directory / MANIFEST
    try:
        raw = msgspec.json.decode(path.read_bytes())
        if not isinstance(raw, dict) or "version" not in raw:
            raise CheckpointError(f"{path} is not a manifest of ours")
        if (version := raw["version"]) != VERSION:
            raise CheckpointVersionError(
                f"{path} has version {version!r}; this release reads {VERSION}",
                fix="resume with the release that wrote it",
            )
        return msgspec.convert(raw, Manifest)
    except FileNotFoundError as gone:
        raise CheckpointError(f"{directory} has no {MANIFEST}: it was never completed") from gone
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise CheckpointError(f"cannot read {path}: {broken}") from broken


def verify(directory: Path, *, thorough: bool = True) -> Manifest:
    """The manifest, after every file was found with its size and (`thorough`) its checksum.

    Raises CheckpointError naming the first file that differs. `thorough` reads everything: seconds per GB.
    """
    manifest = read_manifest(directory)
    if not manifest.files:
        raise CheckpointError(f"{directory / MANIFEST} lists no files")
    for name, expected in manifest.files.items():
        path = directory / name
        if Path(name).name != name:
            raise CheckpointError(f"{directory / MANIFEST} names {name!r}, which is not a file of this directory")
        try:
            found = file_facts(path) if thorough else FileFacts(path.stat().st_size, expected.sha256)
        except OSError as broken:
            raise CheckpointError(f"cannot read {path}: {broken.strerror}") from broken
        if found.size_bytes != expected.size_bytes:
            raise CheckpointError(f"{path} has {found.size_bytes} bytes; its manifest says {expected.size_bytes}")
        if found.sha256 != expected.sha256:
            raise CheckpointError(f"{path} has changed since it was written (SHA-256 differs from its manifest)")
    return manifest
