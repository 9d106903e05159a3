"""DCP planners and a reader that accept plain data only, and account for every tensor."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from slurm_elastic.checkpoint.manifest import Manifest, read_manifest
from slurm_elastic.errors import CheckpointError

METADATA = ".metadata"
NAMES_SHOWN = 10

_SAFE = frozenset(
    [("torch.distributed.checkpoint.metadata", name) for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )]
    + [("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch", "Size"),
       ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")]
    + [("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")]
)  # fmt: skip


class _MetadataUnpickler(pickle.Unpickler):
    """Knows DCP's records, torch's dtypes, and nothing else: anything that could act is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SAFE:
            return super().find_class(module, name)
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        raise CheckpointError(f"its metadata names {module}.{name}, which no checkpoint of ours holds")


def root_cause(broken: BaseException) -> str:
    """The deepest cause in one line, or the first of our own errors on the way to it."""
    root = broken
    while not isinstance(root, CheckpointError) and (deeper := root.__cause__ or root.__context__) is not None:
        root = deeper
    return str(root) if isinstance(root, CheckpointError) else f"{type(root).__name__}: {root}"


class ExplainingWriter(FileSystemWriter):
    """Writes and fsyncs a rank's files. A full disk is named as such on every rank, not only where it is full:
    DCP sends exceptions around without their causes, and torch.save hides the OSError behind a RuntimeError.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except (OSError, RuntimeError) as broken:
            raise CheckpointError(root_cause(broken)) from broken


class PlainReader(FileSystemReader):
    """Reads a checkpoint whose `.metadata` matches its manifest, without unpickling anything that could act."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._directory = path
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """Known once the metadata was read."""
        if self._manifest is None:
            raise CheckpointError(f"{self._directory} has not been read yet")
        return self._manifest

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Called by DCP on every rank, before anything is read."""
        self._manifest = read_manifest(self._directory)
        raw = (self._directory / METADATA).read_bytes()
        expected = self._manifest.files.get(METADATA)
        if expected is None or hashlib.sha256(raw).hexdigest() != expected.sha256:
            raise CheckpointError(f"{self._directory / METADATA} does not match its manifest")
        try:
            metadata = _MetadataUnpickler(io.BytesIO(raw)).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError) as broken:
            raise CheckpointError(f"cannot read {self._directory / METADATA}: {broken}") from broken
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{self._directory / METADATA} is not DCP's metadata")
        return metadata


class PlainSavePlanner(DefaultSavePlanner):
    """Refuses at save time what could not be loaded safely later."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 - DCP's name
        transformed = super().transform_object(write_item, object)
        if write_item.type == WriteItemType.BYTE_IO:
            _load_plain(transformed, write_item.index.fqn)
            transformed.seek(0, io.SEEK_END)
        return transformed


class PlainLoadPlanner(DefaultLoadPlanner):
    """Every expected tensor must be there with its shape; unless `allow_unused`, nothing there may be left over."""

    def __init__(self, path: Path, *, allow_unused: bool) -> None:
        super().__init__()
        self._path = path
        self._allow_unused = allow_unused

    def create_local_plan(self) -> LoadPlan:
        saved = self._saved()
        missing = sorted(set(self.state_dict) - set(saved))
        if missing:
            raise CheckpointError(f"the checkpoint has no {_listed(missing)}")
        misfits = [f"{name} {why}" for name, value in self.state_dict.items() if (why := _misfit(value, saved[name]))]
        if misfits:
            raise CheckpointError(_listed(misfits))
        return super().create_local_plan()

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator only: here is the one place that sees what all ranks ask for."""
        if not self._allow_unused:
            wanted = {item.dest_index.fqn for plan in global_plan for item in plan.items} | set(self.state_dict)
            unused = sorted(set(self._saved()) - wanted)
            if unused:
                raise CheckpointError(
                    f"the checkpoint also holds {_listed(unused)}, which nothing here asks for",
                    fix="give load() the same objects that were saved (is the optimizer's state initialised?)",
                )
        return super().create_global_plan(global_plan)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = _load_plain(value, read_item.dest_index.fqn)
        plain = io.BytesIO()
        torch.save(loaded, plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)  # which unpickles freely: by now these are our own bytes

    def _saved(self) -> dict[str, Any]:
        if self.metadata is None:
            raise CheckpointError(f"{self._path} has no metadata")
        return self.metadata.state_dict_metadata


def _load_plain(stream: io.BytesIO, name: str) -> Any:
    stream.seek(0)
    try:
        return torch.load(stream, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as refused:
        raise CheckpointError(
            f"{name} is not plain data (tensors, numbers, text, lists, dicts), so it cannot be loaded safely",
            fix="put only such values into the state dict",
        ) from refused


def _misfit(value: Any, saved: Any) -> str:
    """What keeps `saved` from filling `value`, "" if nothing."""
    if isinstance(value, torch.Tensor) != isinstance(saved, TensorStorageMetadata):
        kind = "plain value" if isinstance(saved, BytesStorageMetadata) else "tensor"
        return f"is a {kind} in the checkpoint and something else here"
    if isinstance(value, torch.Tensor) and tuple(value.size()) != tuple(saved.size):
        return f"has shape {tuple(saved.size)} in the checkpoint and {tuple(value.size())} here"
    return ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
