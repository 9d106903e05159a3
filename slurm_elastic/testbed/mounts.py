"""The file systems of a testbed: all it writes lies in memory, and its small disk can be filled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.testbed import commands

SOURCE = "slurm-elastic-testbed"
SIZE = "size=2g,mode=0755"


def mount_memory(at: Path, options: str, environ: Mapping[str, str]) -> None:
    commands.must(["mount", "-t", "tmpfs", "-o", options, SOURCE, str(at)], environ=environ)


def ours(directory: Path, mountinfo: str) -> tuple[Path, ...]:
    """Mount points of ours at or below a directory, the deepest first."""
    found = []
    for line in mountinfo.splitlines():
        fields = line.split()
        point = Path(_decoded(fields[4]))
        source = fields[fields.index("-") + 2]
        if source == SOURCE and point.is_relative_to(directory):
            found.append(point)
    return tuple(sorted(found, key=lambda path: len(path.parts), reverse=True))


def unmount_all(directory: Path, environ: Mapping[str, str]) -> None:
    """Unmount what is ours at or below a directory; what somebody still looks into goes once he leaves it."""
    for point in ours(directory, Path("/proc/self/mountinfo").read_text()):
        commands.must(["umount", "--lazy", str(point)], environ=environ)


def _decoded(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
