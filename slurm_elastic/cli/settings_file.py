"""The settings that a command line names: a run.yaml, or a run directory with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_elastic.config import load
from slurm_elastic.config_model import RunConfig
from slurm_elastic.errors import ConfigError


def settings_file(path: Path) -> Path:
    """`path`, or the run.yaml in it."""
    return path / "run.yaml" if path.is_dir() else path


def load_or_faults(path: Path) -> RunConfig | list[dict[str, Any]]:
    """The settings, or every fault of the file as --json prints it."""
    try:
        return load(path)
    except ConfigError as wrong:
        return [{"key": key, "line": line, "reason": why} for line, key, why in wrong.faults]
