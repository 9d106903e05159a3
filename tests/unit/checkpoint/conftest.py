from __future__ import annotations

from pathlib import Path

import pytest
from drafts import MakeDraft, draft_maker


@pytest.fixture
def make_draft(tmp_path: Path) -> MakeDraft:
    return draft_maker(tmp_path)
