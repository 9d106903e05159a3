"""How commands print: one JSON document, or a plain table that fits a terminal. Values are never taken for markup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table


def as_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2))


def as_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; numbers to the right."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table_of(columns, rows, title=title))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """The table that `as_table` prints."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[position], int | float) for row in rows)
        table.add_column(Text(column), justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
