"""Names inside a checkpoint directory, and nothing else: no file is touched here.

<checkpoints>/step-00001200/                  public: complete, verified once, never written again
              latest                          a text file with the name of the newest public one
              .draft-gen0003-step00001200/    being written by generation 3
              bad-step-00001200/              was public, did not verify any more; kept for a look
              .trash-step-00001100/           on its way out
"""

from __future__ import annotations

import re

LATEST = "latest"
MANIFEST = "manifest.json"

_STEP = re.compile(r"step-(\d{8,})")
_DRAFT = re.compile(r"\.draft-gen(\d{4,})-step(\d{8,})")


def step_name(step: int) -> str:
    """Directory name of the public checkpoint of `step`."""
    return f"step-{step:08d}"


def draft_name(generation: int, step: int) -> str:
    """Directory name of the checkpoint of `step` while `generation` writes it."""
    return f".draft-gen{generation:04d}-step{step:08d}"


def bad_name(step: int, attempt: int = 0) -> str:
    """Where a public checkpoint goes that does not verify; `attempt` counts on when the name is taken."""
    return f"bad-{step_name(step)}" + (f".{attempt}" if attempt else "")


def trash_name(name: str) -> str:
    """Where `name` goes before its files are deleted, so that a half-deleted one is never mistaken for one."""
    return f".trash-{name.lstrip('.')}"


def step_of(name: str) -> int | None:
    """Step of a public checkpoint's name; None for anything else."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def generation_of_draft(name: str) -> int | None:
    """Generation that wrote this draft; None for anything that is no draft."""
    match = _DRAFT.fullmatch(name)
    return int(match[1]) if match else None


def is_bad(name: str) -> bool:
    return name.startswith("bad-step-")


def is_trash(name: str) -> bool:
    return name.startswith(".trash-")
