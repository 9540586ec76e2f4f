"""The search behind `prony tune`: what it may recommend, what it may cost, and that it finds the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prony.plan.search import Search
from prony.plan.search_confirm import BETTER, SAME, WORSE, confirmation, next_side
from prony.plan.search_drive import Made, drive
from prony.plan.search_goal import GOALS
from prony.plan.search_space import Candidate, Space
from prony.plan.search_terms import Ask, Limit, Result, Rules

GIB = 2.0**30
GOAL = GOALS["throughput"]
Law = Callable[[dict[str, Any]], tuple[float | None, float]]  # the rate, None out of memory; bytes


def make(lists: dict[str, list[Any]]) -> Space:
    made = [Candidate(tuple(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]
    return Space({name: tuple(values) for name, values in lists.items()}, tuple(made))


def machine(law: Law, around_s: float = 10.0) -> Callable[[Ask], Made]:
    """Noise-free runs by a law."""

    def run(ask: Ask) -> Made:
        rate, memory = law(ask.candidate.settings)
        if rate is None:
            return Made({"status": "failed", "failure": {"kind": "out-of-memory"}, "metrics": {}}, around_s)
        metrics = {"throughput": {"value": rate, "low": rate, "high": rate}, "peak_memory": {"value": memory}}
        record = {"status": "ok", "metrics": metrics, "phases": {"steady": {"seconds": ask.seconds}}}
        return Made(record, around_s + ask.seconds)

    return run


def lawful(half: float, factors: dict[str, dict[Any, float]], sample_gib: float) -> Law:
    def law(chosen: dict[str, Any]) -> tuple[float | None, float]:
        batch = chosen["batch_size"]
        memory = (1.0 + sample_gib * batch) * GIB
        rate = 1000.0 * batch / (batch + half)
        for name, value in chosen.items():
            rate *= factors.get(name, {}).get(value, 1.0)
        return (None if memory > 80.0 * GIB else rate), memory

    return law


LISTS = {"batch_size": [8, 16, 32, 64, 128, 256], "precision": ["bf16", "fp16"], "compile": ["off", "default"]}
factor = st.floats(0.4, 1.0)
laws = st.builds(
    lambda half, a, b, sample: lawful(half, {"precision": {"fp16": a}, "compile": {"off": b}}, sample),
    st.floats(1.0, 200.0), factor, factor, st.floats(0.05, 5.0),
)  # fmt: skip
starts = st.sampled_from(make(LISTS).candidates)


@settings(max_examples=12)
@given(laws, starts, st.floats(20.0, 40.0), st.floats(30.0, 400.0))
def test_what_is_recommended_ran_within_the_bounds_and_the_budget_is_kept(
    law: Law, start: Candidate, gib: float, budget_s: float
) -> None:
    search = Search(make(LISTS), start, limits=[Limit("memory", gib * GIB)], budget_s=budget_s)
    found = drive(search, machine(law), GOAL)
    longest_s = max(step.made.cost_s for step in found.path)
    assert search.spent_s <= max(budget_s, longest_s) + 1e-9
    if found.recommended is None:
        return
    rate, memory = law(found.recommended.settings)
    assert rate is not None
    assert memory < gib * GIB


@settings(max_examples=12)
@given(laws, starts)
def test_without_noise_it_ends_within_its_indifference_of_the_best(law: Law, start: Candidate) -> None:
    space = make(LISTS)
    search = Search(space, start)
    found = drive(search, machine(law), GOAL)
    best = max(law(one.settings)[0] or 0.0 for one in space.candidates)
    start_rate = law(start.settings)[0]
    chosen = law((found.recommended or start).settings)[0]
    assert chosen is not None or best == 0.0
    if start_rate is not None:  # else nothing can be confirmed, but the best is found all the same
        assert found.confirmed is None or found.confirmed.verdict in (BETTER, SAME)
    assert (chosen or 0.0) >= best / (1.0 + search.rules.indifferent) ** 2


@settings(max_examples=8)
@given(laws, st.randoms(use_true_random=False))
def test_the_next_run_does_not_depend_on_the_order_of_results_or_of_words(law: Law, rng: Any) -> None:
    first = make(LISTS)
    search = Search(first, first.candidates[0], rules=Rules(least_gain=0.0))
    run = machine(law)
    for _ in range(6):
        ask = search.ask()
        assert ask is not None
        made = run(ask)
        metric = made.record["metrics"].get("throughput", {})
        ends = (metric.get("value"), metric.get("low"), metric.get("high"))
        failure = None if metric else "out-of-memory"
        search.tell(Result(ask.candidate, *ends, failure, {"memory": None}, made.cost_s, ask.seconds))
    names = list(LISTS)
    rng.shuffle(names)
    other = make({name: rng.sample(LISTS[name], len(LISTS[name])) for name in names})
    again = Search(other, other.of_effective(first.candidates[0].settings), rules=Rules(least_gain=0.0))
    for result in rng.sample(search.results, len(search.results)):
        again.tell(result)
    ours, theirs = search.ask(), again.ask()
    assert (ours and ours.candidate.key) == (theirs and theirs.candidate.key)


def test_out_of_memory_prunes_the_larger_batches_of_its_series_alone() -> None:
    space = make(LISTS)
    start, full = space.candidates[0], Candidate((("batch_size", 64), ("precision", "bf16"), ("compile", "off")))
    search = Search(space, start)
    search.tell(Result(full, None, failure="out-of-memory", cost_s=9.0))
    pruned = {one.key for one in space.candidates if search.pruned(one)}
    sizes = {batch for batch in LISTS["batch_size"] if batch >= 64}
    expected = {Candidate((("batch_size", b), ("precision", "bf16"), ("compile", "off"))).key for b in sizes}
    assert pruned == expected
    assert search.dropped(full) == "out-of-memory"


def test_a_trial_is_dropped_when_its_interval_lies_below_the_leaders_and_a_close_one_runs_again() -> None:
    space = make({"compile": ["off", "default", "max-autotune"]})
    off, default, tuned = space.candidates
    search = Search(space, off)
    search.tell(Result(off, 50.0, 49.0, 51.0, cost_s=10.0))
    search.tell(Result(default, 100.0, 99.0, 101.0, cost_s=10.0))
    search.tell(Result(tuned, 100.5, 97.0, 104.0, cost_s=10.0))
    assert search.dropped(off) == "below the leader"
    assert search.dropped(default) is None
    ask = search.ask()
    assert ask is not None
    assert (ask.candidate.key, ask.seconds) == (tuned.key, search.rules.long_s)


def test_a_start_as_good_as_the_best_stays() -> None:
    space = make({"compile": ["off", "default"]})
    off, default = space.candidates
    search = Search(space, off)
    search.tell(Result(off, 100.0, cost_s=10.0))
    search.tell(Result(default, 100.5, cost_s=10.0))
    best = search.best()
    assert best is not None
    assert best.candidate == off


def test_a_bound_that_was_not_measured_is_not_kept() -> None:
    space = make({"compile": ["off", "default"]})
    search = Search(space, space.candidates[0], limits=[Limit("power", 300.0)])
    search.tell(Result(space.candidates[0], 100.0, limited={"power": None}, cost_s=10.0))
    assert search.best() is None


def test_cold_starts_of_runs_alike_say_what_the_next_costs() -> None:
    space = make(LISTS)
    compiled = Candidate((("batch_size", 8), ("precision", "bf16"), ("compile", "default")))
    plain = Candidate((("batch_size", 8), ("precision", "bf16"), ("compile", "off")))
    search = Search(space, plain)
    search.tell(Result(plain, 1.0, cost_s=10.0, measured_s=2.0))
    search.tell(Result(compiled, 1.0, cost_s=62.0, measured_s=2.0))
    larger = Candidate((("batch_size", 16), ("precision", "bf16"), ("compile", "default")))
    assert 50.0 < search.cost_of(larger, 2.0) < 62.0


def test_a_run_that_would_use_the_budget_to_its_last_moment_is_not_begun() -> None:
    """A run ends with a whole block of steps, so it measures a little longer than it was given."""
    space = make(LISTS)
    start = space.candidates[0]
    for budget_s, fits in ((24.0, False), (24.5, True)):
        search = Search(space, start, budget_s=budget_s)
        search.tell(Result(start, 100.0, cost_s=12.0, measured_s=2.0))
        assert search.cost_of(start, 2.0) == 12.0
        assert search.affordable(start, 2.0) is fits


def test_the_sides_of_an_a_b_take_turns_abba() -> None:
    runs = {"start": 0, "winner": 0}
    order = []
    for _ in range(8):
        side = next_side(runs["start"], runs["winner"])
        runs[side] += 1
        order.append(side[0])
    assert "".join(order) == "swwsswws"


def test_an_a_b_says_better_worse_or_nothing() -> None:
    assert confirmation([100.0], [120.0]) is None
    found = [confirmation([100.0, 101.0], [b, 1.01 * b]) for b in (150.0, 60.0, 101.0)]
    assert [one.verdict for one in found if one] == [BETTER, WORSE, SAME]
    assert found[0] is not None
    assert math.isclose(found[0].ratio, 1.5, rel_tol=1e-9)
