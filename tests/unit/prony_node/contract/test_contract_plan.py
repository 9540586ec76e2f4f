"""A plan arrives as it was sent; what is not a plan is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import NewerSchema, Peak, Plan, RequestError, Stop, Trial
from prony_node.contract.trial import PLAN_VERSION, check_schema

PLAN = Plan(
    run_id="gpt-tiny-1",
    trial=Trial("gpt-tiny", {"batch_size": 8, "graphs": False, "precision": "bf16"}),
    repeat=2,
    stop=Stop(0.005, 1.0, 20.0),
    peaks=(Peak("H200", "bf16", 989e12, "data sheet"), Peak("H100", "fp16", 9e14, "data sheet")),
    hung_after_s=10.0,
    cold_start_after_s=20.0,
    time_limit_s=60.0,
    cut_short=True,
    created="2026-01-01T00:00:00+00:00",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def test_a_plan_comes_back_from_its_json() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN
    bare = Plan(run_id="x", trial=Trial("resnet50"))
    assert Plan.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def test_a_rate_for_publication_has_a_long_window_on_a_warm_device() -> None:
    rule = Stop(tolerance=0.005, max_time_s=5.0).sustained()
    assert (rule.tolerance, rule.min_time_s, rule.max_time_s) == (0.005, 20.0, 20.0)
    assert rule.warm_time_s > 0
    assert Stop(max_time_s=120.0).sustained().max_time_s == 120.0


def test_a_newer_plan_is_refused_and_says_so() -> None:
    with pytest.raises(NewerSchema, match=r"prony\.plan/2 was written by a newer Prony; .* Upgrade Prony"):
        Plan.from_json({**PLAN.to_json(), "schema": f"prony.plan/{PLAN_VERSION + 1}"})


@pytest.mark.parametrize(
    "schema", [None, 1, "", "prony.plan/", "prony.plan/x", "prony.record/1", "prony.plan/²", "prony.plan/-1",
               "prony.plan/" + "9" * 5000],
)  # fmt: skip
def test_what_is_no_plan_is_refused(schema: object) -> None:
    with pytest.raises(RequestError):
        Plan.from_json({**PLAN.to_json(), "schema": schema})
    with pytest.raises(RequestError):
        check_schema([schema], "prony.plan", 1)


@given(key=st.sampled_from(sorted(PLAN.to_json())), value=JSON)
def test_a_broken_plan_raises_nothing_but_a_request_error(key: str, value: Any) -> None:
    document = PLAN.to_json()
    for broken in ({**document, key: value}, {name: document[name] for name in document if name != key}):
        try:
            plan = Plan.from_json(broken)
        except RequestError:
            continue
        assert isinstance(plan.trial.workload, str)
        assert isinstance(plan.repeat, int)
        assert all(isinstance(limit, int | float) for limit in (plan.stop.tolerance, plan.stop.max_time_s))
        assert plan.time_limit_s is None or isinstance(plan.time_limit_s, int | float)


@given(key=st.sampled_from(["workload", "settings"]), value=JSON)
def test_a_broken_trial_raises_nothing_but_a_request_error(key: str, value: Any) -> None:
    document = PLAN.to_json()
    document["trial"] = {**document["trial"], key: value}
    try:
        plan = Plan.from_json(document)
    except RequestError:
        return
    assert isinstance(plan.trial.workload, str)
    assert len(plan.trial.hash) == 16


@given(JSON)
def test_any_document_is_a_plan_or_a_request_error(document: Any) -> None:
    with pytest.raises(RequestError):
        Plan.from_json(document)
