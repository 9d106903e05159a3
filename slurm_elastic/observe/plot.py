"""A curve in a few rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], *, width: int = 72, height: int = 8, label: str = "") -> str:
    """`values` over equal steps as blocks, averaged to `width` columns; the scale at the left. "" for no values."""
    if not values:
        return ""
    columns = _averaged(values, min(width, len(values)))
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    eighths = [round((value - low) / span * (height * 8 - 1)) + 1 for value in columns]
    rows = []
    for row in reversed(range(height)):
        scale = {height - 1: f"{high:8.3f} ", 0: f"{low:8.3f} "}.get(row, " " * 9)
        rows.append(scale + "│" + "".join(_EIGHTHS[max(0, min(8, level - row * 8))] for level in eighths))
    rows.append(" " * 9 + "└" + "─" * len(columns) + (f"  {label}" if label else ""))
    return "\n".join(rows)


def _averaged(values: Sequence[float], columns: int) -> list[float]:
    bounds = [len(values) * column // columns for column in range(columns + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
