"""The demo from curtain to curtain: cluster up, the story, the closing, cluster down in any case."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_elastic.demo import closing
from slurm_elastic.demo.reference import Reference
from slurm_elastic.demo.screen import Screen
from slurm_elastic.demo.stage import Stage, options
from slurm_elastic.demo.story import Story
from slurm_elastic.demo.text import load_text
from slurm_elastic.testbed.cluster import Cluster


def play(directory: Path, *, steps: int, name: str, keep: bool) -> None:
    """Play all of it in `directory`. Raises SlurmElasticError when something does not come about in time."""
    cluster = Cluster(name, options())
    reference = Reference(directory / "fixed-size", steps)
    try:
        with Screen() as screen:
            screen.say(f"A small GPT learns {load_text()[0]}; the run directory is {directory / 'run'}.")
            cluster.up()
            screen.say(f"A real Slurm of {cluster.options.nodes} nodes is up on this machine.")
            stage = Stage(cluster, directory, screen.show)
            Story(stage, screen.say, reference, steps).play()
        summary, lines = closing.summarise(stage, reference)
        click.echo(closing.text_of(summary, lines))
        click.echo(f"summary: {closing.write(summary, stage.run.path)}")
    finally:
        reference.stop()
        if not keep:
            cluster.down()
