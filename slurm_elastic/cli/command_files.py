"""Is what run.command names there? Only a warning: it may exist on the compute nodes alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.agent.script import PYTHONS
from slurm_elastic.config_decode import did_you_mean
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
    path = config.run.env.get("PATH", os.environ.get("PATH"))
    if "/" not in command[0] and command[0] not in PYTHONS and not shutil.which(command[0], path=path):
        hint = did_you_mean(command[0], ("python", "torchrun", "bash"))
        yield "run.command", f"there is no program {command[0]!r} in the PATH of this machine{hint}"
    script = next((word for word in command if word.endswith(".py")), "")
    for word in dict.fromkeys((command[0] if "/" in command[0] else "", script)):
        if word and not (workdir / word).exists():
            yield "run.command", f"there is no {workdir / word} on this machine"
