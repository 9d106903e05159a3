"""The independent judge of plans and its cases, where they are beside the project."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

CASES = Path(__file__).parents[4] / "shared" / "migration-cases"


def oracle() -> ModuleType | None:
    path = CASES / "oracle.py"
    spec = importlib.util.spec_from_file_location("migration_oracle", path) if path.exists() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_cases() -> list[dict[str, Any]]:
    path = CASES / "public.json"
    return json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else []
