from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))

from wire_rig import ServerThread


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ServerThread]:
    made = ServerThread(tmp_path)
    yield made
    made.close()


@pytest.fixture
def environ() -> dict[str, str]:
    """With stand-ins for Slurm's commands; nothing is imported ahead."""
    bin_dir = Path(__file__).parent / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return {**kept, "PATH": f"{bin_dir}:{os.environ['PATH']}", "ELASTIC_WARM": ""}
