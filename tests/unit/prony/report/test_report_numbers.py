"""A number that is read wrongly was measured for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from prony.analysis.summary import Quality
from prony.report.numbers import (
    format_bytes,
    format_metric,
    format_number,
    format_quality,
    format_rate,
    format_seconds,
    format_si,
)
from prony_node.contract.record import Metric


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12650.0, "12,650"), (999.96, "1,000"), (9999.6, "10,000"), (0.05312, "0.05312"),
     (1234567.0, "1,235,000"), (6.843, "6.843"), (-2.5, "-2.500"),
     (6.5432e-13, "6.543e-13")],
)  # fmt: skip
def test_number_has_four_digits_that_mean_something(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (3.2e-7, "320.0 ns"), (9.9999e-4, "1.000 ms"), (0.04048, "40.48 ms"),
     (0.9999999, "1.000 s"), (12.3, "12.30 s"), (119.6, "119.6 s"), (125.0, "2 min 05 s"),
     (3725.0, "1 h 02 min"), (None, "–")],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (2048, "2.000 KiB"), (44.2 * 2**30, "44.20 GiB"), (None, "–")],
)
def test_bytes_are_binary(value: float | None, text: str) -> None:
    assert format_bytes(value) == text


def test_rate_shows_the_wider_half_of_its_interval() -> None:
    assert format_rate(1000.0, "images/s", 990.0, 1020.0) == "1,000 images/s ± 2.0 %"
    assert format_rate(1000.0, "images/s", 999.0, 1001.0, 10.02) == "1,000 images/s ± 0.10 %, 10 s"
    assert format_rate(1000.0, "images/s", 990.0, 1020.0, 2.04) == "1,000 images/s ± 2.0 %, 2 s"
    assert format_rate(1000.0, "images/s", window_s=10.0) == "1,000 images/s"
    assert format_rate(1000.0, "images/s") == "1,000 images/s"
    assert format_rate(None, "images/s") == "–"
    assert format_rate(23456789.0, "tokens/s") == "23.46 M tokens/s"


def test_counts_have_si_prefixes() -> None:
    assert format_si(24.5e9, "FLOP") == "24.50 GFLOP"
    assert format_si(12.0, "FLOP") == "12.00 FLOP"


def shown(name: str, parts: dict[str, Any] | None) -> str:
    """A metric of these parts, as text."""
    return format_metric(name, None if parts is None else Metric(**{"scope": "all devices", "source": "test", **parts}))


@pytest.mark.parametrize(
    ("name", "metric", "text"),
    [
        ("mfu", {"value": 0.188, "low": 0.187, "high": 0.189, "unit": "1"}, "18.8 % (18.7 % to 18.9 %)"),
        ("loss_last", {"value": 6.42, "unit": "1"}, "6.420"),
        ("peak_memory", {"value": 2.0**30, "unit": "B"}, "1.000 GiB"),
        ("step_time", {"value": 0.04, "low": 0.0396, "high": 0.0404, "unit": "s"}, "40.00 ms ± 1.0 %"),
        ("throughput", {"value": 84120.0, "unit": "tokens/s"}, "84,120 tokens/s"),
        ("mfu", {"value": None, "reason": "no peak is known"}, "– (no peak is known)"),
        ("mfu", None, "–"),
    ],
)
def test_metric_in_human_units(name: str, metric: dict[str, Any] | None, text: str) -> None:
    assert shown(name, metric) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(712.34e12, "FLOP/s", "712.3 TFLOP/s"), (4.123e12, "B/s", "4.123 TB/s"), (5.1e15, "FLOP/Wh", "5.100 PFLOP/Wh")],
)
def test_the_rate_of_a_ceiling_has_a_prefix(value: float, unit: str, text: str) -> None:
    assert format_rate(value, unit, 0.99 * value, 1.01 * value) == f"{text} ± 1.0 %"


def test_a_score_has_its_name_and_its_own_interval() -> None:
    metric = {"value": 0.9342, "low": 0.929, "high": 0.939, "unit": "accuracy"}
    assert shown("quality", metric) == "accuracy 0.9342 (0.9290 to 0.9390)"
    assert shown("quality", metric | {"value": 1.3, "low": None, "unit": "loss"}) == "loss 1.300"


def test_much_energy_has_a_prefix() -> None:
    assert shown("energy_to_quality", {"value": 24_800.0, "unit": "J"}) == "24,800 J"
    assert shown("energy_to_quality", {"value": 3.2e7, "unit": "J"}) == "32.00 MJ"


@pytest.mark.parametrize(
    ("quality", "text"),
    [
        (Quality("accuracy", 0.9342, None, None, 17, 0.93, True, 41.3),
         "accuracy 0.9342 after 17 epochs, 93 % reached in 41.30 s"),
        (Quality("accuracy", 0.912, None, None, 20, 0.935, False, None),
         "accuracy 0.9120 after 20 epochs, 93.5 % not reached"),
        (Quality("loss", 1.29, None, None, 1, 1.3, True, None), "loss 1.290 after 1 epoch, 1.3 reached"),
        (Quality("exact_match", 0.8, None, None, None, None, False, None), "exact_match 0.8000"),
    ],
)  # fmt: skip
def test_quality_in_a_line(quality: Quality, text: str) -> None:
    assert format_quality(quality) == text
