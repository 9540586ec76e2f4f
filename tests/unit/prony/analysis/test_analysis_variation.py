"""If these fail, a comparison of single runs takes the variation between runs from the wrong place."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prony.analysis.variation import (
    NEAREST,
    OWN,
    PRIOR,
    PRIOR_DEVIATION,
    SAME_TRIAL,
    Repeat,
    borrowed_variation,
    distance,
    own_variation,
)

WITHIN = 0.0005
SETTINGS = {"mode": "train", "batch_size": 64, "precision": "bf16", "seed": 0}


def repeat(name: str, rate: float, device: str = "H200", software: str = "s", **settings: Any) -> Repeat:
    return Repeat(name, "resnet50", device, ("m", software), SETTINGS | settings, rate)


def repeats(deviation: float, count: int = 4, **more: Any) -> list[Repeat]:
    """Repeats with exactly this deviation of log rates."""
    scale = deviation / math.sqrt(count / (count - 1))
    return [repeat(f"{more}{n}", 1000.0 * math.exp(scale * (-1) ** n), **more) for n in range(count)]


ONE = repeat("one", 1000.0)


def test_repeats_of_the_same_trial_come_first() -> None:
    found = borrowed_variation(ONE, WITHIN, [*repeats(0.01), *repeats(0.18, batch_size=32)])
    assert (found.kind, found.degrees, found.runs) == (SAME_TRIAL, 3.0, 4)
    assert found.deviation == pytest.approx(0.01)
    assert found.source == "4 repeats of the same trial"


def test_another_seed_is_the_same_trial_and_other_software_has_a_mean_of_its_own() -> None:
    newer = [repeat(f"new{n}", 1.2 * one.rate, software="t", seed=n) for n, one in enumerate(repeats(0.01))]
    found = borrowed_variation(ONE, WITHIN, [*repeats(0.01, seed=1), *newer[:1]])
    assert (found.kind, found.runs) == (SAME_TRIAL, 4)
    both = borrowed_variation(ONE, WITHIN, [*repeats(0.01), *newer])
    assert (both.degrees, both.deviation) == (6.0, pytest.approx(0.01))


def test_the_nearest_settings_come_next() -> None:
    far = repeats(0.01, batch_size=512, precision="fp32")
    found = borrowed_variation(ONE, WITHIN, [*far, *repeats(0.18, batch_size=32)])
    assert (found.kind, found.degrees, found.runs) == (NEAREST, 2.0, 4)
    assert found.deviation == pytest.approx(0.18)
    assert found.source == "4 repeats of the nearest settings (batch_size=32)"


@pytest.mark.parametrize("other", [{"device": "A100"}, {"mode": "infer"}])
def test_another_device_or_mode_says_nothing(other: dict[str, Any]) -> None:
    found = borrowed_variation(ONE, WITHIN, repeats(0.05, **other))
    assert (found.kind, found.deviation, found.degrees) == (PRIOR, PRIOR_DEVIATION, 1.0)


def test_two_repeats_that_agree_by_chance_are_not_believed() -> None:
    found = borrowed_variation(ONE, WITHIN, repeats(0.00001, 2))
    assert (found.kind, found.deviation) == (PRIOR, PRIOR_DEVIATION)
    assert borrowed_variation(ONE, WITHIN, repeats(0.08, 2)).deviation == pytest.approx(0.08)


def test_a_run_that_is_off_does_not_hide_behind_itself() -> None:
    off = repeat("off", 1200.0)
    found = borrowed_variation(off, WITHIN, [off, *repeats(0.01)])
    assert found.deviation == pytest.approx(0.01)


def test_what_is_compared_is_no_variation() -> None:
    others = [repeat(f"b{n}", 1500.0 * by) for n, by in enumerate((0.99, 1.0, 1.01))]
    found = borrowed_variation(ONE, WITHIN, [*repeats(0.01), *others], others)
    assert found.deviation == pytest.approx(0.01, rel=0.02)


def test_a_spread_below_what_each_run_leaves_open_is_chance() -> None:
    assert own_variation([1000.0, 1000.0, 1000.0], 0.003).deviation == 0.003
    assert own_variation([1000.0, 1010.0], 0.003).kind == OWN


def test_distance_counts_settings_and_factors_of_two_of_the_batch() -> None:
    assert distance(SETTINGS, SETTINGS | {"seed": 7, "study": "x"}) == 0.0
    assert distance(SETTINGS, SETTINGS | {"batch_size": 32}) == 1.0
    assert distance(SETTINGS, SETTINGS | {"batch_size": 96}) == 1.0
    assert distance(SETTINGS, SETTINGS | {"batch_size": 1024}) == 4.0
    assert distance(SETTINGS, SETTINGS | {"precision": "fp32", "workers": 4}) == 2.0
