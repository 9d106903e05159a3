"""The cases of state movement carried out by real processes, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.migrate import casefile, planner
from slurm_elastic.migrate.model import Plan
from tests.training.migration_cases import CASES, Case, load_oracle, raw_cases, read_case, read_plan
from tests.training.movers import move_all, store_at
from tests.training.worlds import WorldOfProcesses

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(not CASES.exists(), reason="the cases of state movement are not here"),
]


@pytest.fixture(scope="module", params=["ours", "reference"])
def plans(request: pytest.FixtureRequest) -> list[tuple[Case, Plan]]:
    """Every case that can be carried out, with our plan or a plain one of the judge."""
    raw = raw_cases()
    if request.param == "ours":
        made = [planner.plan(casefile.read_case(case)).plan for case in raw]
    else:
        oracle = load_oracle()
        made = [read_plan(oracle.reference_plan(oracle.Case(case))) for case in raw]
    return [(read_case(case), plan) for case, plan in zip(raw, made, strict=True) if plan.status == "ok"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["gloo", "shared"])
def test_every_case_is_moved_bit_for_bit(kind: str, plans: list[tuple[Case, Plan]], tmp_path: Path) -> None:
    assert len(plans) > 40
    store = store_at(0, served=True)
    size = max(len(case.devices) for case, _ in plans)
    log = tmp_path / "log"

    codes = WorldOfProcesses(size, move_all, store.port, kind, plans, size, log=log).wait(240)

    assert codes == [0] * size, log.read_text()
    assert log.read_text().count("moved") == size
