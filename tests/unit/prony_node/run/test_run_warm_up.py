"""Before a run measures, its steps are as fast as they will be, and its batches come as fast as they will come."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from prony_node.contract.record import Phase
from prony_node.contract.trial import Stop
from prony_node.run import measuring as warm_up_module
from prony_node.run.measuring import warm_up
from prony_node.stats import StopRule

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


@dataclass
class Made:
    """As much of a run as warm-up looks at."""

    setup: Any
    built: Any
    met: list[int]
    phase: Phase | None = None

    def warm_up(self) -> float:
        found: dict[str, Phase] = {}
        journal: Any = SimpleNamespace(add=lambda phases: found.update(phases))
        warm = warm_up(self.setup, self.built, journal)
        self.phase = found["warm_up"]
        return warm.step_s

    @property
    def steps(self) -> int:
        assert self.phase is not None
        return int(self.phase.steps or 0)


def run_of(
    *,
    varies: bool,
    device: str = "xpu",
    fixed: int | None = None,
    first_s: float = 0.0,
    max_s: float = 60.0,
    mode: str = "default",
    step_s: float = 0.0,
    warm_s: float = 0.0,
) -> Made:
    """A run whose step takes `first_s` for a batch that it has not met, and `step_s` for one that it has."""
    met: list[int] = []

    def step(batch: int) -> None:
        CLOCK.now_s += first_s if batch not in met else step_s
        met.append(batch)

    model = SimpleNamespace(step=step, batches=itertools.cycle(range(POOL)), pool=POOL, waits_for_data=False)
    return Made(
        SimpleNamespace(
            settings={"mode": "train", "data": "device", "compile": mode}, lockstep=False, learns=False,
            ranks=SimpleNamespace(), rule=StopRule(tolerance=0.01, min_time_s=0.0, max_time_s=max_s),
            backend=SimpleNamespace(kind=device, synchronise=lambda: None),
            plan=SimpleNamespace(stop=Stop(warm_time_s=warm_s)),
        ),
        SimpleNamespace(varies=varies, fixed_steps=fixed, model=model),
        met,
    )  # fmt: skip


def test_every_shape_comes_before_the_window() -> None:
    """A first step as long as a second must not be taken for how long the others will be."""
    run = run_of(varies=True, first_s=0.051)
    step_s = run.warm_up()
    assert set(run.met) == set(range(POOL))
    assert run.steps == len(run.met)
    assert step_s < 0.05


def test_a_shape_that_is_captured_when_it_comes_again_has_come_again() -> None:
    run = run_of(varies=True, first_s=0.06, mode="reduce-overhead")
    run.warm_up()
    assert min(run.met.count(batch) for batch in range(POOL)) == 2


def test_it_does_not_take_longer_than_the_run_may_measure() -> None:
    run = run_of(varies=True, first_s=0.05, max_s=0.2)
    run.warm_up()
    assert len(set(run.met)) < POOL


@pytest.mark.parametrize(
    "given", [{"varies": False}, {"varies": True, "fixed": 2}, {"varies": True, "device": "cpu"}], ids=str
)
def test_a_second_of_steps_is_enough_for_the_others(given: dict[str, Any]) -> None:
    """One shape, a length that was asked for, and a CPU, where a model may take a minute a step."""
    run = run_of(first_s=0.6, **given)
    run.warm_up()
    assert len(run.met) == 1


STEP_S, WORKERS, PREFETCH = 0.5, 4, 3


class Loader:
    """Full when the run begins; then a batch each `every_s`, while there is room."""

    def __init__(self, every_s: float) -> None:
        self.every_s, self.ready, self.next_s, self.waited_s = every_s, WORKERS * PREFETCH, CLOCK.now_s + every_s, 0.0

    def __next__(self) -> int:
        while self.next_s <= CLOCK.now_s or not self.ready:
            if self.next_s > CLOCK.now_s:
                self.waited_s += self.next_s - CLOCK.now_s
                CLOCK.now_s = self.next_s
            self.ready = min(WORKERS * PREFETCH, self.ready + 1)
            self.next_s += self.every_s
        self.ready -= 1
        return 0


def run_from_files(every_s: float, fixed: int | None = None, **settings: Any) -> Made:
    run = run_of(varies=False, fixed=fixed)

    def step(batch: int) -> None:
        CLOCK.now_s += STEP_S
        run.met.append(batch)

    model = run.built.model
    model.step, model.batches, model.waits_for_data = step, Loader(every_s), True
    run.setup.settings |= {"data": "generated", "workers": WORKERS, "prefetch": PREFETCH, **settings}
    run.setup.learns = "until" in settings
    return run


def rate_of_window(run: Made, steps: int) -> float:
    model, began = run.built.model, CLOCK.now_s
    for _ in range(steps):
        model.step(next(model.batches))
    return steps / (CLOCK.now_s - began)


@pytest.mark.parametrize("share", [0.3, 0.65, 0.9, 0.99])
def test_a_short_window_tells_the_rate_of_a_loader_that_is_too_slow(share: float) -> None:
    """With the full queues of the cold start it would tell the step's."""
    run = run_from_files(STEP_S / share)
    run.warm_up()
    assert run.steps == len(run.met)
    assert rate_of_window(run, 20) == pytest.approx(share / STEP_S, rel=0.06)


@pytest.mark.parametrize("share", [1.2, 2.5, 100.0])
def test_a_loader_that_keeps_up_is_not_waited_for(share: float) -> None:
    run = run_from_files(STEP_S / share)
    run.warm_up()
    assert len(run.met) <= 1 + WORKERS * PREFETCH
    assert rate_of_window(run, 20) == pytest.approx(1 / STEP_S, rel=0.05)


def test_a_loader_that_is_behind_from_the_start_is_left_at_once() -> None:
    run = run_from_files(60.0)
    run.built.model.batches.ready = 1
    run.warm_up()
    assert len(run.met) == 2
    assert run.built.model.batches.waited_s <= 120.0


@pytest.mark.parametrize("given", [{"fixed": 3}, {"until": "accuracy>=0.9"}, {"workers": 0}], ids=str)
def test_steps_that_are_counted_and_loaders_without_queues_use_up_nothing(given: dict[str, Any]) -> None:
    run = run_from_files(STEP_S * 2, **given)
    run.warm_up()
    assert len(run.met) == 1


def test_steps_of_many_seconds_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEP_S", 11.0)
    run = run_from_files(22.0)
    run.warm_up()
    assert len(run.met) == 1


@pytest.mark.parametrize(("step_s", "warm_s", "at_most_s"), [(0.03, 5.0, 6.5), (0.7, 5.0, 6.5), (0.03, 0.0, 1.0)])
def test_the_device_is_warm_before_the_window(step_s: float, warm_s: float, at_most_s: float) -> None:
    run = run_of(varies=False, first_s=step_s, step_s=step_s, warm_s=warm_s)
    began_s = CLOCK.now_s
    run.warm_up()
    assert warm_s <= CLOCK.now_s - began_s <= at_most_s
    assert run.phase is not None
    assert run.phase.seconds == pytest.approx(CLOCK.now_s - began_s)
    assert run.steps == len(run.met)


def test_a_run_of_a_given_number_of_steps_is_not_made_longer_to_get_warm() -> None:
    run = run_of(varies=False, first_s=0.03, step_s=0.03, warm_s=5.0, fixed=2)
    began_s = CLOCK.now_s
    run.warm_up()
    assert CLOCK.now_s - began_s < 1.0
