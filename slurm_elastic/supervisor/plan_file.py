"""A plan on the disk before anybody hears of it: a supervisor that restarts must tell the others exactly the same."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from slurm_elastic.errors import RunDirectoryError
from slurm_elastic.rundir import replace_text

Plan = TypeVar("Plan", bound=msgspec.Struct)


def save(path: Path, plan: msgspec.Struct) -> None:
    replace_text(path, msgspec.json.encode(plan).decode() + "\n")


def load(path: Path, kind: type[Plan]) -> Plan | None:
    """The last one that was saved; None before the first. Raises RunDirectoryError for a damaged one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as broken:
        raise RunDirectoryError(f"cannot read {path}: {broken}", fix="remove the file") from broken
