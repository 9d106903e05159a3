"""Saving and loading state dicts by torch.distributed.checkpoint (DCP). Torch is imported here only.

All ranks of `group` call `save` and `load` together. A save goes into a new draft directory: each rank writes and
fsyncs its own files and takes their checksums; rank 0 writes the manifest after it has those of all. Publishing is
somebody else's work (`publish.publish`).

Nothing that could run code is unpickled on load: tensors and plain values go through torch's weights-only path, and
DCP's `.metadata` (a pickle by design) through `plain.read_metadata`, which knows DCP's own record types and nothing
else. Limit: between the ranks of one run DCP itself exchanges pickles over the process group, whose network must
be trusted as far as torch.distributed always demands it.
"""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from slurm_elastic.checkpoint.exchange import all_gather_json, group_rank
from slurm_elastic.checkpoint.layout import draft_name
from slurm_elastic.checkpoint.manifest import About, FileFacts, Manifest, file_facts, write_manifest
from slurm_elastic.checkpoint.plain import ExplainingWriter, PlainLoadPlanner, PlainReader, PlainSavePlanner, root_cause
from slurm_elastic.errors import CheckpointError
from slurm_elastic.rundir import sync_directory

StateDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete draft, on every rank the same. `blocked_s`: how long the caller of `save` was held up."""

    draft: str
    step: int
    size_bytes: int
    save_s: float
    blocked_s: float


class Saving:
    """A save under way (background) or already over."""

    def __init__(self, outcome: Future[Saved]) -> None:
        self._outcome = outcome

    @property
    def is_done(self) -> bool:
        """True when `wait` returns or raises at once."""
        return self._outcome.done()

    def wait(self, timeout_s: float) -> Saved:
        """The complete draft. Raises CheckpointError when the save failed (on every rank) or is not over in time."""
        try:
            return self._outcome.result(timeout_s)
        except FutureTimeout as late:
            raise CheckpointError(f"the checkpoint was not written within {timeout_s:.0f} s") from late


def checkpoint_group() -> dist.ProcessGroup | None:
    """A process group of its own for checkpoints (CPU, gloo), so that a background save cannot deadlock training.

    To be called once by all ranks, early. None without torch.distributed (one process).
    """
    if not dist.is_initialized():
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def save(
    state_dict: StateDict,
    directory: Path,
    about: About,
    group: dist.ProcessGroup | None = None,
    *,
    background: bool = False,
) -> Saving:
    """Write `state_dict` as a draft in `directory`; all ranks call this, with equal `about`.

    `background`: returns when a copy in CPU memory is taken; the caller may go on changing its tensors. Wait for
    one background save before starting the next on the same group. Otherwise returns when the draft is complete.
    Errors are raised by `Saving.wait`, never here, except a wrong `group` (CheckpointError).
    """
    _check_group(group, background)
    start = time.monotonic()
    outcome: Future[Saved] = Future()
    if not background:
        _settle(outcome, state_dict, directory, about, group, start)
        return Saving(outcome)
    staged = BlockingAsyncStager().stage(state_dict)
    blocked_s = time.monotonic() - start
    threading.Thread(
        target=_settle,
        args=(outcome, staged, directory, about, group, start, blocked_s),
        name=f"checkpoint-{about.step}",
        daemon=True,  # whoever needs it waits for it; a hung file system must not keep the process alive
    ).start()
    return Saving(outcome)


def load(
    state_dict: StateDict, path: Path, group: dist.ProcessGroup | None = None, *, allow_unused: bool = False
) -> About:
    """Fill `state_dict` in place from the checkpoint at `path`, resharding as needed; all ranks call this.

    Returns what the checkpoint is of. Raises CheckpointError on all ranks, naming every tensor that is missing there
    or has another shape, and (unless `allow_unused`) every one there that nobody asked for: a model that loads
    without its optimizer trains on, but wrongly. Some tensors of `state_dict` may have been changed by then.
    """
    reader = PlainReader(path)
    try:
        dcp_load(
            state_dict,
            storage_reader=reader,
            planner=PlainLoadPlanner(path, allow_unused=allow_unused),
            process_group=group,
            no_dist=not dist.is_initialized(),
        )
    except (CheckpointException, OSError, RuntimeError, ValueError) as broken:
        raise CheckpointError(f"cannot load the checkpoint {path}: {_first_failure(broken)}") from broken
    return reader.manifest.about


def _check_group(group: dist.ProcessGroup | None, background: bool) -> None:
    if not dist.is_initialized():
        return
    if background and group is None:
        raise CheckpointError(
            "a background save needs a process group of its own: sharing training's can deadlock",
            fix="pass group=checkpoint_group()",
        )
    backend = str(dist.get_backend(group))
    if not any(name in backend for name in ("gloo", "mpi")):
        raise CheckpointError(
            f"checkpoints need a CPU process group, not {backend}", fix="pass group=checkpoint_group()"
        )


def _settle(
    outcome: Future[Saved],
    state_dict: StateDict,
    directory: Path,
    about: About,
    group: dist.ProcessGroup | None,
    start: float,
    blocked_s: float | None = None,
) -> None:
    """Runs the save and puts its end into `outcome`, whatever it is: a waiter must never wait for a dead thread."""
    draft = directory / draft_name(about.generation, about.step)
    try:
        manifest = _write(state_dict, draft, about, group)
    except CheckpointError as broken:
        _discard(draft, group)
        outcome.set_exception(broken)
    except (CheckpointException, OSError, RuntimeError, ValueError, TypeError) as broken:
        explained = _explained(broken, draft, about.step)
        _discard(draft, group)
        outcome.set_exception(explained)
    except BaseException as broken:
        outcome.set_exception(broken)
        raise
    else:
        taken = time.monotonic() - start
        outcome.set_result(
            Saved(draft.name, about.step, manifest.size_bytes, taken, taken if blocked_s is None else blocked_s)
        )


def _write(state_dict: StateDict, draft: Path, about: About, group: dist.ProcessGroup | None) -> Manifest:
    rank = group_rank(group)
    _prepare(draft, rank, group)
    dcp_save(
        state_dict,
        storage_writer=ExplainingWriter(draft, sync_files=True),
        planner=PlainSavePlanner(),
        process_group=group,
        no_dist=not dist.is_initialized(),
    )
    files = _gathered_facts(draft, rank, group)
    manifest = Manifest(about=about, files=files)
    problem = ""
    if rank == 0:
        try:
            write_manifest(draft, manifest)
        except OSError as broken:
            problem = f"the manifest: {broken.strerror}"
    _raise_first(all_gather_json({"problem": problem}, group), draft)
    return manifest


def _prepare(draft: Path, rank: int, group: dist.ProcessGroup | None) -> None:
    """An empty directory, before any rank goes on: DCP makes it on all ranks, which must not meet our clearing.

    A failure is everybody's: a rank that stayed out of DCP's collectives would be one save behind for ever.
    """
    problem = ""
    if rank == 0:
        try:
            if draft.exists():  # left by a save that failed: DCP must never write over an old one
                shutil.rmtree(draft)
            draft.mkdir(parents=True)
        except OSError as broken:
            problem = f"the directory: {broken.strerror}"
    _raise_first(all_gather_json({"problem": problem}, group), draft)


def _gathered_facts(draft: Path, rank: int, group: dist.ProcessGroup | None) -> dict[str, FileFacts]:
    """Size and checksum of every file, each taken by the rank that wrote it."""
    mine: dict[str, list[Any]] = {}
    problem = ""
    try:
        for path in sorted(draft.iterdir()):
            if path.name.startswith(f"__{rank}_") or (rank == 0 and path.name == ".metadata"):
                facts = file_facts(path)
                mine[path.name] = [facts.size_bytes, facts.sha256]
        sync_directory(draft)
    except OSError as broken:
        problem = f"{broken.filename or draft}: {broken.strerror}"
    answers = all_gather_json({"problem": problem, "files": mine}, group)
    _raise_first(answers, draft)
    return {name: FileFacts(size, sha256) for answer in answers for name, (size, sha256) in answer["files"].items()}


def _discard(draft: Path, group: dist.ProcessGroup | None) -> None:
    """Give the space back: what a failed save left would keep a full disk full. Best effort; retention comes again."""
    if group_rank(group) == 0:
        shutil.rmtree(draft, ignore_errors=True)


def _raise_first(answers: list[dict[str, Any]], draft: Path) -> None:
    for rank, answer in enumerate(answers):
        if answer["problem"]:
            raise CheckpointError(f"rank {rank} could not complete {draft}: {answer['problem']}{_space(draft)}")


def _explained(broken: BaseException, draft: Path, step: int) -> CheckpointError:
    return CheckpointError(
        f"could not save the checkpoint of step {step} to {draft}: {_first_failure(broken)}{_space(draft)}",
        fix="the checkpoint before it is untouched; check space, quota and rights there",
    )


def _first_failure(broken: BaseException) -> str:
    """The root cause in one line: DCP's exception carries one per failed rank, each with its traceback."""
    if isinstance(broken, CheckpointException) and broken.failures:
        rank, (cause, _) = min(broken.failures.items())
        return f"rank {rank}: {_first_failure(cause)}"
    return root_cause(broken)


def _space(draft: Path) -> str:
    try:
        return f" ({shutil.disk_usage(draft.parent).free / 1e9:.1f} GB free)"
    except OSError:
        return ""
