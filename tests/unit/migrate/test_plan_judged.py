"""Plans against an independent judge: the public cases, and random ones of many kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_file import oracle, public_cases
from plan_cases import random_case
from plan_judge import Judge

from slurm_elastic.migrate.casefile import read_case
from slurm_elastic.migrate.planner import Planned, as_json, plan

JUDGE = oracle()


def planned(case: dict[str, Any]) -> tuple[Planned, dict[str, Any]]:
    made = plan(read_case(case))
    return made, json.loads(json.dumps(as_json(made.plan)))


@pytest.mark.skipif(JUDGE is None, reason="the judge is not beside the project")
@pytest.mark.parametrize("case", public_cases(), ids=lambda case: case["id"])
def test_public_cases_are_accepted(case):
    made, shown = planned(case)
    verdict = JUDGE.check(JUDGE.Case(case), shown)

    assert verdict["errors"] == []
    if made.plan.status == "ok":
        assert (shown.get("cost_matrix") is not None) == (len(shown["host"]) * len(case["devices"]) <= 64)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**40))
def test_random_cases_are_accepted(seed):
    case = random_case(seed)
    made, shown = planned(case)
    if JUDGE is not None:
        verdict = JUDGE.check(JUDGE.Case(case), shown)
        assert verdict["errors"] == []
    if made.plan.status == "ok":
        own = Judge(case, shown)
        assert own.faults == []
        assert sum(own.received.values()) == sum(own.sent.values()) == shown["claims"]["total_bytes"]
        assert max(own.sent.values(), default=0) == shown["claims"]["max_send_bytes"]
        assert max(0, *own.peak.values()) == max(0, made.peak_extra)


@pytest.mark.skipif(JUDGE is None, reason="the judge is not beside the project")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**40))
def test_a_memory_limit_that_a_plain_plan_keeps_is_kept(seed):
    case = random_case(seed) | {"objective": ["bytes"]}
    truth = JUDGE.Case(case)
    if truth.status() != "ok":
        return
    try:
        plain = JUDGE.check(truth, JUDGE.reference_plan(truth), True)["metrics"]["peak_extra_bytes"]
    except AssertionError:  # chunks smaller than an element
        return
    case.setdefault("limits", {})["peak_extra_bytes"] = max(0, *plain.values())
    assert JUDGE.check(JUDGE.Case(case), planned(case)[1])["errors"] == []
