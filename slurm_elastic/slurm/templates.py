"""The batch scripts in `sbatch_templates/`: readable, usable by hand, and filled in by `submit`.

A template is a whole bash script with two marked blocks. Rendering replaces these and nothing else:

    # >>> options      `#SBATCH` lines
    # >>> values       shell variables, name=value
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from slurm_elastic.errors import UserMistake

Template = Literal["base", "companion", "single", "mpi", "level0"]

# A link in a checkout, a folder of the package where it is installed.
FOLDER = Path(__file__).parent.parent / "sbatch_templates"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%=,+~\[\]-]+", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)


def read(template: Template) -> str:
    """The script as it stands."""
    return (FOLDER / f"{template}.sbatch").read_text(encoding="utf-8")


def render(template: Template, options: Mapping[str, str | bool], values: Mapping[str, str]) -> str:
    """The script with these sbatch options and shell variables. No value can become shell code.

    Raises UserMistake for a value with a line end or another control character: `#SBATCH` lines cannot carry them.
    """
    for name, value in [*options.items(), *values.items()]:
        if isinstance(value, str) and not value.isprintable():
            raise UserMistake(
                f"{name}: {value!r} has a line end or another control character",
                fix="Slurm cannot take it; choose a value in one line",
            )
    if wrong := [name for name in options if not _NAME.fullmatch(name)]:
        raise UserMistake(f"not an option of sbatch: {wrong[0]!r}", fix="use long names without dashes")
    text = _replace(read(template), "options", _option_lines(options))
    return _replace(text, "values", (f"{name}={shlex.quote(value)}" for name, value in values.items()))


def _option_lines(options: Mapping[str, str | bool]) -> Iterable[str]:
    for name, value in options.items():
        if value is True:
            yield f"#SBATCH --{name}"
        elif value:
            yield f"#SBATCH --{name}={_sbatch_quoted(value)}"


def _sbatch_quoted(value: str) -> str:
    """sbatch reads these lines itself: in double quotes only a backslash and a double quote mean something."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _replace(text: str, block: str, lines: Iterable[str]) -> str:
    before, start, rest = text.partition(f"# >>> {block}\n")
    _, end, after = rest.partition(f"# <<< {block}\n")
    return "".join([before, start, *(f"{line}\n" for line in lines), end, after])
