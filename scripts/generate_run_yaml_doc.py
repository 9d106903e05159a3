"""Writes docs/run-yaml.md from the settings and their meanings."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.config_keys import reference

if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "docs" / "run-yaml.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(reference(), encoding="utf-8")
