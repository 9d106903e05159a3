from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.machine.events import ScaleRequested, StopRequested
from slurm_elastic.supervisor.requests import waiting_requests


def test_requests_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "2.json").write_text('{"ask": "stop"}')
    (tmp_path / "1.json").write_text('{"ask": "scale", "nodes": 3}')
    (tmp_path / "0.json").write_text('{"ask": "scale", "nodes": null}')

    facts = [fact for _, fact in waiting_requests(tmp_path)]

    assert facts == [ScaleRequested(nodes=None), ScaleRequested(nodes=3), StopRequested(reason="asked by the user")]


NO_REQUESTS = ["", "{", '{"ask": "explode"}', '{"ask": "scale", "nodes": "3"}', "[]", "x" * 9000]
OUT_OF_RANGE = [f'{{"ask": "scale", "nodes": {nodes}}}' for nodes in (-3, 0, 10**6, 10**30)]


@pytest.mark.parametrize("content", [*NO_REQUESTS, *OUT_OF_RANGE])
def test_what_is_no_request_is_dropped(tmp_path: Path, content: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)

    assert list(waiting_requests(tmp_path)) == []
    assert not bad.exists()


def test_a_folder_among_the_requests_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0.json").mkdir()
    (tmp_path / "1.json").write_text('{"ask": "stop"}')

    assert len(list(waiting_requests(tmp_path))) == 1
