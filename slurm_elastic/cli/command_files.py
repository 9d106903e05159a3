"""Is what run.command names there? Only a warning: it may exist on the compute nodes alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config_model import RunConfig


def missing_files(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(key, what is missing) for run.workdir, the program and the script of run.command."""
    command, workdir = config.run.command, Path(config.run.workdir)
    if len(command) == 1 and any(letter.isspace() for letter in command[0]):
        words = ", ".join(command[0].split())
        yield "run.command", f"is one word with blanks: no shell splits it; write [{words}]"
        return
    if not workdir.is_dir():
        yield "run.workdir", f"there is no folder {workdir} on this machine"
        return
    script = next((word for word in command if word.endswith(".py")), "")
    for word in dict.fromkeys((command[0] if "/" in command[0] else "", script)):
        if word and not (workdir / word).exists():
            yield "run.command", f"there is no {workdir / word} on this machine"
