"""Single values as Slurm prints them: moments, durations, counts, versions. Pure; ValueError when it is none."""

from __future__ import annotations

import re
from datetime import datetime

from slurm_elastic.units import parse_duration

_NOTHING = frozenset(
    {"", "(null)", "n/a", "none", "unknown", "unlimited", "not_set", "invalid", "partition_limit", "none assigned"}
)
_VERSION = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{1,3})", re.ASCII)
_COUNT = re.compile(r"(\d{1,7})(?:\(x(\d{1,5})\))?", re.ASCII)


def text(printed: str) -> str:
    """The value, or "" for each of Slurm's words for nothing ("(null)", "N/A", "None", ...)."""
    printed = printed.strip()
    return "" if printed.lower() in _NOTHING else printed


def moment(printed: str) -> float | None:
    """Unix seconds of "1796078848" or of local time "2026-11-29T13:31:43"; None for "N/A", "Unknown", "0", ..."""
    printed = text(printed)
    if not printed or printed == "0":
        return None
    if printed.isdigit():
        return float(printed)
    return datetime.strptime(printed, "%Y-%m-%dT%H:%M:%S").timestamp()


def duration(printed: str) -> float | None:
    """Seconds of "5:00", "02:00:00", "1-00:00:00"; None for "UNLIMITED", "Partition_Limit", ..."""
    printed = text(printed)
    return parse_duration(printed) if printed else None


def number(printed: str, default: int = 0) -> int:
    """An integer; of a range "1-3" the first; `default` for a word for nothing."""
    printed = text(printed)
    return int(printed.split("-")[0]) if printed else default


def exit_code(printed: str) -> str:
    """ "code:signal"; squeue prints the wait status as one number instead (32512 is "127:0")."""
    printed = text(printed)
    if not printed.isdigit():
        return printed
    status = int(printed)
    return f"{status >> 8}:{status & 0x7F}"


def version(printed: str) -> tuple[int, int, int]:
    """(22, 5, 8) for "slurm-wlm 22.05.8" or "slurm 24.11.5-1"."""
    found = _VERSION.search(printed)
    if not found:
        raise ValueError(f"no Slurm version in {printed[:80]!r}")
    year, month, patch = found.groups()
    return int(year), int(month), int(patch)


def counts(printed: str) -> tuple[int, ...]:
    """One number per node, in the order of the node list: SLURM_JOB_CPUS_PER_NODE "4(x2),8" is (4, 4, 8)."""
    numbers: list[int] = []
    for part in printed.split(","):
        matched = _COUNT.fullmatch(part.strip())
        if not matched:
            raise ValueError(f"not a list of counts: {printed[:80]!r}")
        numbers.extend([int(matched[1])] * int(matched[2] or 1))
    return tuple(numbers)
