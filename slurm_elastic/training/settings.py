"""What a script or run.yaml can set about training: one frozen value, read once by `init`."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import msgspec

from slurm_elastic.config_model import Batch, Checkpoint, Control, RunConfig
from slurm_elastic.errors import UserMistake


class Overrides(TypedDict, total=False):
    """Keyword arguments of `init`. Under slurm-elastic run.yaml has most of them; the script's values win."""

    directory: str | Path  # standalone only: where checkpoints/ and ledger.jsonl go (default: elastic-run)
    global_batch_size: int  # if run.yaml has it, too, the two must agree: allowed sizes depend on it
    micro_batch_size: int  # 0: no limit
    checkpoint_every_steps: int  # 0: not by steps
    checkpoint_every_s: float  # 0: not by time
    checkpoint_async: bool
    checkpoint_keep: int
    backend: str  # of the process group; default: gloo, plus nccl for CUDA
    overlap: bool  # False: ranks agree before the next step instead of during it (very long steps)
    reseed: bool  # False: leave the random generators of torch, numpy and random alone


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` holds checkpoints and, standalone, the ledger. `reference_workers`: for policy scale_batch."""

    batch: Batch = Batch()
    checkpoint: Checkpoint = Checkpoint(async_save=False)
    control: Control = Control()
    directory: Path = Path("elastic-run")
    checkpoints: Path = Path("elastic-run/checkpoints")
    reference_workers: int = 0
    drain_s: float = 30.0  # how long a drain may take
    backend: str = ""
    overlap: bool = True
    reseed: bool = True


def from_config(config: RunConfig, directory: Path) -> Settings:
    """Settings of a run that slurm-elastic started in `directory`."""
    return Settings(
        batch=config.batch,
        checkpoint=config.checkpoint,
        control=config.control,
        directory=directory,
        checkpoints=Path(config.checkpoint.dir) if config.checkpoint.dir else directory / "checkpoints",
        reference_workers=config.elastic.min_nodes * config.workers_per_node,
        drain_s=config.elastic.graceful_shutdown_timeout,
    )


def override(settings: Settings, overrides: Overrides, *, standalone: bool) -> Settings:
    """`settings` with the script's values in place. Raises UserMistake for a value that makes no sense."""
    replace = msgspec.structs.replace
    batch, checkpoint = settings.batch, settings.checkpoint
    if "global_batch_size" in overrides:
        batch = replace(batch, global_batch_size=_agreed_batch(batch, overrides["global_batch_size"]))
    if "micro_batch_size" in overrides:
        batch = replace(batch, micro_batch_size=overrides["micro_batch_size"])
    if "checkpoint_every_steps" in overrides:
        checkpoint = replace(checkpoint, every_steps=overrides["checkpoint_every_steps"])
    if "checkpoint_every_s" in overrides:
        checkpoint = replace(checkpoint, every=overrides["checkpoint_every_s"])
    if "checkpoint_async" in overrides:
        checkpoint = replace(checkpoint, async_save=overrides["checkpoint_async"])
    if "checkpoint_keep" in overrides:
        checkpoint = replace(checkpoint, keep=_positive("checkpoint_keep", overrides["checkpoint_keep"]))
    settings = replace(
        settings,
        batch=batch,
        checkpoint=checkpoint,
        backend=overrides.get("backend", settings.backend),
        overlap=overrides.get("overlap", settings.overlap),
        reseed=overrides.get("reseed", settings.reseed),
    )
    if standalone:
        directory = Path(overrides.get("directory", settings.directory))
        settings = replace(settings, directory=directory, checkpoints=directory / "checkpoints")
    return settings


def _agreed_batch(batch: Batch, size: int) -> int:
    if batch.global_batch_size not in (0, size):
        raise UserMistake(
            f"elastic.init(global_batch_size={size}), but batch.global_batch_size in run.yaml is "
            f"{batch.global_batch_size}",
            fix="leave it out in one of the two",
        )
    return _positive("global_batch_size", size)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise UserMistake(f"{name}={value}: at least 1 is needed", fix=f"correct the call elastic.init({name}=...)")
    return value
