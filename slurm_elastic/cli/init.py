"""`slurm-elastic init [PATH]`."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from slurm_elastic.config import loads
from slurm_elastic.config_keys import MEANING, SECTION_MEANING, default_of, fields, type_of
from slurm_elastic.errors import ConfigError, UserMistake

WIDTH = 100
_FLAGS = {"base.gpus_per_node": "--gpus", "run.name": "--name", "run.dir": "--name"}
PLAIN = ("text", "mapping", "list of words", "whole number")  # types that need no mention


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="run.yaml")
@click.option("--nodes", default="1-4", metavar="MIN-MAX", show_default=True, help="Least and most nodes of the run.")
@click.option("--name", default="", help="Name of the run.  [default: the folder's name]")
@click.option("--gpus", default=0, help="GPUs that each node gives.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
def init(path: Path, nodes: str, name: str, gpus: int, force: bool) -> None:
    """Write a commented run.yaml to PATH, ready to be edited.

    \b
    Examples:
      slurm-elastic init
      slurm-elastic init big.yaml --nodes 2-16 --gpus 8
    """
    low, high = _range(nodes)
    if path.is_dir():
        path = path / "run.yaml"
    text = render(name or _name_of(path.absolute().parent), low, high, gpus)
    _refuse_bad_flags(text, path)
    _write(path, text, force)
    click.echo(f"wrote {path}; edit run.command, then: slurm-elastic check {path}")


def render(name: str, low: int, high: int, gpus: int) -> str:
    """The file's text: keys that most people set are set, all others are there as comments."""
    chosen = {
        "run.name": json.dumps(name),
        "run.dir": json.dumps(f"runs/{name}"),
        "run.command": "[python, train.py]",
        "base.nodes": str(low),
        "base.gpus_per_node": str(gpus),
        "elastic.min_nodes": str(low),
        "elastic.max_nodes": str(high),
        "checkpoint.every": "10m",
    }
    return "\n".join(_lines(chosen)) + "\n"


def _lines(chosen: dict[str, str]) -> Iterator[str]:
    yield "# An elastic training run. `slurm-elastic check FILE` tests this file, `sizes FILE` shows the allowed sizes."
    yield "# Durations: 30s, 5m, 1h30m, 1-12:00:00; a number alone is seconds."
    for section, meaning in SECTION_MEANING.items():
        yield ""
        yield f"# {meaning}"
        active = any(key.startswith(section + ".") for key in chosen)
        yield f"{section}:" if active else f"# {section}:"
        for key, info in fields().items():
            if not key.startswith(section + "."):
                continue
            kind = "" if type_of(key, info) in PLAIN else f" ({type_of(key, info)})"
            for row in textwrap.wrap(f"{MEANING[key]}{kind}".replace("`", ""), WIDTH):
                yield f"  # {row}"
            if key in chosen:
                yield f"  {info.encode_name}: {chosen[key]}"
            else:
                yield f"  # {info.encode_name}: {default_of(key, info)}".rstrip()


def _range(nodes: str) -> tuple[int, int]:
    low, dash, high = nodes.partition("-")
    if not (low.isascii() and low.isdigit() and len(low) < 10):
        raise UserMistake(f"--nodes {nodes!a} is not MIN-MAX", fix="write for example --nodes 2-8")
    if dash and not (high.isascii() and high.isdigit() and len(high) < 10):
        raise UserMistake(f"--nodes {nodes!a} is not MIN-MAX", fix="write for example --nodes 2-8")
    if dash and int(low) > int(high):
        raise UserMistake(
            f"--nodes {nodes}: the least, {low}, is more than the most, {high}", fix=f"write --nodes {high}-{low}"
        )
    return int(low), int(high or low)


def _refuse_bad_flags(text: str, path: Path) -> None:
    """Flags that make no valid file are refused before it is written, by their own names."""
    try:
        loads(text, path)
    except ConfigError as wrong:
        _, key, why = wrong.faults[0]
        flag = _FLAGS.get(key, "--nodes" if key.startswith(("base.", "elastic.")) else "--name")
        raise UserMistake(
            f"{flag} does not fit: {key} {why}", fix=f"give another {flag}; nothing was written"
        ) from wrong


def _name_of(folder: Path) -> str:
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in folder.name)
    return plain.lstrip("._-")[:64] or "training"


def _write(path: Path, text: str, force: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as there:
        raise UserMistake(f"{path} is already there", fix="choose another name, or --force to overwrite it") from there
    except (OSError, ValueError) as broken:
        raise UserMistake(f"cannot write {path}: {broken}", fix="check the folder and your rights") from broken
