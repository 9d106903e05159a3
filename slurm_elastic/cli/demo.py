"""`slurm-elastic demo`: one real training on a real Slurm on this machine, through a day of a cluster's life."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

STEPS = 800


@click.command()
@click.option("--steps", type=click.IntRange(min=300), default=STEPS, show_default=True, help="Optimizer steps.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where to put it (default: a new folder).",
)
@click.option("--name", default="demo", show_default=True, help="Name of the testbed; two demos need two names.")
@click.option("--keep", is_flag=True, help="Leave the testbed up at the end, to look around.")
def demo(steps: int, directory: Path | None, name: str, keep: bool) -> None:
    """Play a day of a cluster's life to one real training.

    Brings up a real Slurm of six nodes on this machine (root needed), trains a small GPT on real text, and takes
    nodes away and gives them back. Ends with what each transition cost and a comparison with the same training at
    a fixed size. Takes about eight minutes on two cores; the testbed is taken down at the end, also after Ctrl-C.

    \b
    Examples:
      slurm-elastic demo
      slurm-elastic demo --keep --name tour --dir ~/tour
    """
    from slurm_elastic.demo.play import play
    from slurm_elastic.errors import UserMistake

    place = (directory or Path(tempfile.gettempdir()) / f"slurm-elastic-demo-{os.getuid()}-{os.getpid()}").absolute()
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as broken:
        raise UserMistake(f"--dir {place}: {broken.strerror}", fix="choose a directory that you can write") from broken
    if (place / "run").exists():
        raise UserMistake(f"--dir {place} holds a demo's run already", fix="choose another directory, or remove it")
    play(place, steps=steps, name=name, keep=keep)
