"""Host lists as Slurm writes them ("n[1-3,7]"), expanded and folded by ClusterShell.

ClusterShell knows more than Slurm (node groups, set operators, steps), and would run programs for a group. What a
controller prints never has those, so they are refused here before ClusterShell sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

LARGEST = 65_536  # names in one list: more is a mistake or an attack, and would be expanded in memory
_LONGEST_TEXT = 2**20
_BRACKETS = re.compile(r"\[([^][]*)\]")
_NAME = re.compile(r"[A-Za-z0-9_.\-]+", re.ASCII)
_RANGES = re.compile(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Names of a host list, each once, in its order (which per-node counts of Slurm follow). "" is no hosts.

    Raises ValueError for a malformed list, or for one of more than 65,536 names (without expanding it).
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "N/A", "n/a"):
        return ()
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"host list of {len(text)} characters")
    patterns = _patterns(text)
    total = sum(_size(pattern, text) for pattern in patterns)
    if total > LARGEST:
        raise ValueError(f"host list of {total} names, {LARGEST} are allowed: {text[:80]!r}")
    try:
        sets = [NodeSet(pattern, resolver=RESOLVER_NOGROUP) for pattern in patterns]
    except NodeSetException as broken:
        raise ValueError(f"not a host list: {text[:80]!r} ({broken})") from broken
    return tuple(dict.fromkeys(str(name) for names in sets for name in names))


def fold(names: Iterable[str]) -> str:
    """The shortest form that Slurm also reads: brackets only at the end of a name ("rack1-n[1-3]")."""
    wanted = sorted(set(names))
    if strange := [name for name in wanted if not _NAME.fullmatch(name)]:
        raise ValueError(f"not a host name: {strange[0][:80]!r}")
    if len(wanted) > LARGEST:
        raise ValueError(f"{len(wanted)} names, {LARGEST} are allowed")
    foldable = NodeSet.fromlist([name for name in wanted if name[-1].isdigit()], resolver=RESOLVER_NOGROUP)
    # Slurm refuses text after a bracket ("n[1-2]-ib0"), so only the last number of a name is folded.
    foldable.fold_axis = (-1,)
    parts = [str(foldable), *(name for name in wanted if not name[-1].isdigit())]
    return ",".join(part for part in parts if part)


def _patterns(text: str) -> list[str]:
    """Split at commas outside brackets."""
    patterns: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            patterns.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"not a host list: {text[:80]!r} (brackets)")
    if depth:
        raise ValueError(f"not a host list: {text[:80]!r} (brackets)")
    return [*patterns, text[start:]]


def _size(pattern: str, text: str) -> int:
    """How many names `pattern` stands for; raises ValueError when it is none that Slurm writes."""
    size = 1
    for ranges in _BRACKETS.findall(pattern):
        if not _RANGES.fullmatch(ranges):
            raise ValueError(f"not a host list: {text[:80]!r} (range {ranges[:40]!r})")
        size *= sum(_range_size(part) for part in ranges.split(","))
    if not _NAME.fullmatch(_BRACKETS.sub("0", pattern)):
        raise ValueError(f"not a host list: {text[:80]!r} (name {pattern[:40]!r})")
    return size


def _range_size(text: str) -> int:
    first, _, last = text.partition("-")
    return max(0, int(last) - int(first) + 1) if last else 1
