"""Before a run measures, its steps are as fast as they will be: where shapes vary, each has been there once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prony_node.parallel.ranks import Ranks
from prony_node.stats import StopRule
from prony_node.supervise import warm_up as warm_up_module
from prony_node.supervise.warm_up import warm_up

POOL = 21


class Clock:
    """Moves when a step is taken and at no other time: how busy this machine is does not matter."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_module, "time", CLOCK)


def run_of(
    *,
    varies: bool,
    device: str = "xpu",
    fixed: int | None = None,
    first_s: float = 0.0,
    max_s: float = 60.0,
    mode: str = "default",
) -> Any:
    """A run whose step takes `first_s` for a batch that it has not met, and next to nothing for one that it has."""
    met: list[int] = []

    def step(batch: int) -> None:
        if batch not in met:
            CLOCK.now_s += first_s
        met.append(batch)

    return SimpleNamespace(
        task=SimpleNamespace(varies="yes" if varies else ""), device=torch.device(device), step=step, met=met,
        batches=itertools.cycle(range(POOL)), settings={"mode": "train", "data": "device", "compile": mode}, phases={},
        ranks=Ranks(None), rule=StopRule(tolerance=0.01, min_time_s=0.0, max_time_s=max_s), synchronise=lambda: None,
        fixed_steps=lambda: fixed, steps_of_all_shapes=lambda: POOL,
    )  # fmt: skip


def test_every_shape_comes_before_the_window() -> None:
    """A first step as long as a second must not be taken for how long the others will be."""
    run = run_of(varies=True, first_s=0.051)
    step_s = warm_up(run)
    assert set(run.met) == set(range(POOL))
    assert run.phases["warm_up"]["steps"] == len(run.met)
    assert step_s < 0.05


def test_a_shape_that_is_captured_when_it_comes_again_has_come_again() -> None:
    run = run_of(varies=True, first_s=0.06, mode="reduce-overhead")
    warm_up(run)
    assert min(run.met.count(batch) for batch in range(POOL)) == 2


def test_it_does_not_take_longer_than_the_run_may_measure() -> None:
    run = run_of(varies=True, first_s=0.05, max_s=0.2)
    warm_up(run)
    assert len(set(run.met)) < POOL


@pytest.mark.parametrize(
    "given", [{"varies": False}, {"varies": True, "fixed": 2}, {"varies": True, "device": "cpu"}], ids=str
)
def test_a_second_of_steps_is_enough_for_the_others(given: dict[str, Any]) -> None:
    """One shape, a length that was asked for, and a CPU, where a model may take a minute a step."""
    run = run_of(first_s=0.6, **given)
    warm_up(run)
    assert len(run.met) == 1
