"""Where the recorded outputs of real controllers are. They lie beside the checkout, not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3].parent / "shared"
SAMPLES = _BESIDE / "slurm-samples"
OUTPUTS = _BESIDE / "slurm-outputs"


def outputs(pattern: str) -> list[object]:
    """One pytest parameter per recorded file; a single skipped one where there are none."""
    found = sorted(OUTPUTS.glob(f"*/{pattern}"))
    missing = pytest.param(OUTPUTS, marks=pytest.mark.skip(reason=f"no recorded outputs in {OUTPUTS}"))
    return [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in found] or [missing]


def sample(name: str) -> str:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"no recorded samples in {SAMPLES}")
    return path.read_bytes().decode("utf-8", "replace")


def answer_to(text: str, command: str) -> str:
    """The part of a transcript that follows "$ command"; the whole text when it has no prompts."""
    if not text.lstrip().startswith("$ "):
        return text
    for chunk in text.split("$ ")[1:]:
        line, _, answer = chunk.partition("\n")
        if line.startswith(command):
            return answer
    return ""
