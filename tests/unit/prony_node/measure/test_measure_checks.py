"""A check says pass only where something was shown; what could not be checked is unknown."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from prony_node.contract.record import Check, measured, missing
from prony_node.measure.checks import (
    OUTPUT_BOUND,
    arithmetic_check,
    clock_check,
    learning_checks,
    loader_check,
    output_checks,
    series_checks,
    utilisation_check,
)  # fmt: skip
from prony_node.measure.loop import Block, Window
from prony_node.stats import Estimate, StopRule

GOOD = Estimate(
    step_time_s=0.01, step_time_low_s=0.0099, step_time_high_s=0.0101, relative_half_width=0.008, confidence=0.95,
    steps=1000, blocks=500, independent_blocks=80.0, window_s=10.0, cut_steps=0, cut_s=0.0, drift=0.001,
    drift_half_width=0.004, drifting="no", levels=1, level_values_s=[0.01],
)  # fmt: skip
RULE = StopRule(tolerance=0.01, max_time_s=20.0)


def levels(found: list[dict[str, str]]) -> dict[str, str]:
    assert all(check.message for check in found)
    return {check.name: check.level for check in found}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [({}, "steady", "pass"), ({}, "levels", "pass"), ({}, "blocks", "pass"), ({}, "tolerance", "pass"),
     ({"drifting": "yes", "drift": 0.03}, "steady", "warn"),
     ({"drifting": "yes", "drift": -0.03}, "steady", "warn"),
     ({"drifting": "yes", "drift": 0.011, "drift_half_width": 0.003}, "steady", "pass"),
     ({"drifting": "yes", "drift": 0.018, "drift_half_width": 0.003}, "steady", "warn"),
     ({"drifting": "unknown"}, "steady", "unknown"),
     ({"drifting": "unknown", "drift_half_width": None}, "steady", "unknown"),
     ({"cut_s": 6.0}, "steady", "warn"), ({"cut_s": 4.0}, "steady", "pass"),
     ({"levels": 2, "level_values_s": [0.01, 0.02]}, "levels", "warn"),
     ({"levels": 2, "level_values_s": [0.3574, 0.3604]}, "levels", "pass"),
     ({"independent_blocks": 18.0}, "blocks", "pass"), ({"independent_blocks": 12.0}, "blocks", "warn"),
     ({"independent_blocks": 12.0, "relative_half_width": 0.003}, "blocks", "pass"),
     ({"independent_blocks": 4.0, "relative_half_width": 0.003}, "blocks", "warn"),
     ({"relative_half_width": 0.02}, "tolerance", "warn")],
)  # fmt: skip
def test_the_series_is_judged_by_its_estimate(change: dict[str, Any], name: str, level: str) -> None:
    assert levels(series_checks(replace(GOOD, **change), RULE, fixed=False))[name] == level


def test_a_rate_of_too_few_steps_for_an_interval_is_a_doubt() -> None:
    """A run of one step printed a rate, and on a quiet machine nothing spoke against it."""
    found = levels(series_checks(None, RULE, fixed=False))
    assert found == {"steady": "unknown", "levels": "unknown", "blocks": "warn", "tolerance": "warn"}


def test_a_series_that_was_not_estimated_or_not_steered_is_unknown() -> None:
    assert set(levels(series_checks(None, RULE, fixed=True)).values()) == {"unknown"}
    assert levels(series_checks(GOOD, RULE, fixed=True))["tolerance"] == "unknown"
    few = replace(GOOD, independent_blocks=12.0)
    assert levels(series_checks(few, RULE, fixed=True))["blocks"] == "unknown"


@pytest.mark.parametrize(
    ("first", "last", "steps", "level"),
    [(5.0, 4.0, 100, "pass"), (5.0, 4.0, 3, "pass"), (5.0, 5.5, 100, "warn"), (5.0, 5.0, 100, "warn"),
     (5.0, 5.5, 10, "unknown"), (5.0, math.nan, 100, "fail"), (math.inf, 4.0, 100, "fail"), (5.0, math.nan, 3, "fail")],
)  # fmt: skip
def test_training_must_train(first: float, last: float, steps: int, level: str) -> None:
    assert levels(learning_checks(first, last, steps, 5, 5, True))["loss"] == level


@pytest.mark.parametrize(
    ("moved", "precision", "level"),
    [(5, "fp32", "pass"), (4, "fp32", "fail"), (0, "fp32", "fail"), (4, "bf16", "fail"), (4, "bf16-pure", "warn"),
     (0, "bf16-pure", "fail"), (5, "bf16-pure", "pass")],
)  # fmt: skip
def test_parameters_must_move(moved: int, precision: str, level: str) -> None:
    assert levels(learning_checks(5.0, 4.0, 99, moved, 5, True, precision))["parameters"] == level


def test_nan_is_a_failure() -> None:
    assert levels(learning_checks(5.0, 4.0, 99, 5, 5, False))["finite"] == "fail"
    assert levels(output_checks(1e-4, False, "fp32")) == {"outputs": "pass", "finite": "fail"}
    assert levels(output_checks(math.nan, False, "fp32")) == {"outputs": "fail", "finite": "fail"}


def test_an_answer_of_zeros_cannot_be_compared() -> None:
    outputs, _ = output_checks(None, True, "fp32")
    assert outputs.level == "fail"
    assert "zero throughout" in outputs.message


@pytest.mark.parametrize("precision", OUTPUT_BOUND)
def test_answers_are_held_to_the_bound_of_their_precision(precision: str) -> None:
    bound = OUTPUT_BOUND[precision]
    assert levels(output_checks(0.9 * bound, True, precision))["outputs"] == "pass"
    assert levels(output_checks(1.1 * bound, True, precision))["outputs"] == "fail"


def test_rate_times_time_must_be_the_work() -> None:
    assert arithmetic_check(41.10, 8.126, 334).level == "pass"
    assert arithmetic_check(39.92, 8.126, 334).level == "fail"  # fasterrcnn, as an H200 had it
    assert arithmetic_check(None, 8.126, 334).level == "unknown"
    assert arithmetic_check(282.19, 0.0435, 12).level == "pass"  # 12.28 of two copies, rounded


def test_a_starved_loader_is_named() -> None:
    assert loader_check(None).level == "pass"
    assert loader_check(0.01).level == "pass"
    assert loader_check(0.41) == Check("loader", "warn", "input-bound: 41.0% of step time waiting for data")


def test_more_than_the_peak_is_an_alarm() -> None:
    assert utilisation_check(measured(0.4, "1", scope="one device", source="data sheet")).level == "pass"
    assert utilisation_check(measured(1.37, "1", scope="one device", source="data sheet")).level == "fail"
    assert utilisation_check(missing("no peak is known")) == Check("utilisation", "unknown", "no peak is known")


def test_two_clocks_that_disagree_are_named() -> None:
    def window(device_s: float, host_s: float) -> Window:
        return Window("device events", "", (Block(1, device_s, 0.0),), (100.0, 100.0 + host_s))

    assert clock_check(window(10.0, 10.05)).level == "pass"
    assert clock_check(window(10.0, 10.5)).level == "warn"
    assert clock_check(window(0.010, 0.025)).level == "pass"  # milliseconds at the ends weigh much in a short window
