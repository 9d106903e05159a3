from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wire_rig import ServerThread


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ServerThread]:
    made = ServerThread(tmp_path)
    yield made
    made.close()
