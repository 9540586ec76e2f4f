"""The search behind `prony tune`: what it may advise, what it may cost, and that it finds the best."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from documents import record_of_parts
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.study.search import (
    BETTER,
    SAME,
    UNDECIDED,
    WORSE,
    Confirmation,
    Search,
    SearchOutcome,
    SearchRun,
    confirmation,
    interim_analyses,
    next_runs,
    next_side,
)
from prony.study.search_space import (
    GOALS,
    Candidate,
    Goal,
    Limit,
    PairRun,
    Result,
    Rules,
    Screening,
    Space,
    result_of,
)
from prony_node.contract.record import OUT_OF_MEMORY, Phase

GIB = 2.0**30
GOAL = GOALS["throughput"]
OUT = record_of_parts({"status": "failed", "failure": {"kind": OUT_OF_MEMORY, "message": ""}})
Law = Callable[[dict[str, Any]], tuple[float | None, float]]  # the rate, None out of memory; bytes


def make(lists: dict[str, list[Any]]) -> Space:
    made = [Candidate(tuple(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]
    return Space({name: tuple(values) for name, values in lists.items()}, tuple(made))


def pick(space: Space, **settings: Any) -> Candidate:
    return next(one for one in space.candidates if one.settings == settings)


@dataclass
class LawfulMachine:
    """Runs by a law, `spread` apart; a process costs 10 s and each size in it 5 s more, beside measuring."""

    law: Law
    spread: float = 0.0
    fails: Callable[[dict[str, Any]], bool] = lambda _: False  # whose runs fail a check
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    asked: list[Screening | PairRun] = field(default_factory=list)

    def screen(self, ask: Screening) -> list[SearchRun]:
        self.asked.append(ask)
        made: list[SearchRun] = []
        for candidate in ask.candidates:
            made.append(self._make(candidate, ask.seconds, not made))
            if made[-1].record.status != "ok":
                break
        return made

    def run(self, ask: PairRun) -> SearchRun:
        self.asked.append(ask)
        return self._make(ask.candidate, ask.seconds, True)

    def _make(self, candidate: Candidate, seconds: float, fresh: bool) -> SearchRun:
        rate, memory = self.law(candidate.settings)
        cost_s = 10.0 * fresh + 5.0 + seconds
        if rate is None:
            return SearchRun(OUT, cost_s, fresh)
        rate *= math.exp(self.rng.gauss(0.0, self.spread))
        metrics = {"throughput": {"value": rate, "low": rate, "high": rate}, "peak_memory": {"value": memory}}
        phases = {"build": {"seconds": 5.0}, "steady": {"seconds": seconds}}
        checks = [{"name": "parameters", "level": "fail", "message": ""}] if self.fails(candidate.settings) else []
        return SearchRun(record_of_parts({"metrics": metrics, "phases": phases, "checks": checks}), cost_s, fresh)


def search_with(search: Search, machine: LawfulMachine, goal: Goal) -> SearchOutcome:
    """The search, answered by a machine."""
    asks = next_runs(search, goal)
    try:
        ask = next(asks)
        while True:
            ask = asks.send(machine.screen(ask) if isinstance(ask, Screening) else [machine.run(ask)])
    except StopIteration as end:
        found: SearchOutcome = end.value
        return found


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
SIZES = {"batch_size": [8, 16, 32, 64]}
factor = st.floats(0.4, 1.0)
laws = st.builds(
    lambda half, a, b, sample: lawful(half, {"precision": {"fp16": a}, "compile": {"off": b}}, sample),
    st.floats(1.0, 200.0), factor, factor, st.floats(0.05, 5.0),
)  # fmt: skip
starts = st.sampled_from(make(LISTS).candidates)


@settings(max_examples=12)
@given(laws, starts, st.floats(20.0, 40.0), st.floats(30.0, 900.0))
def test_what_is_kept_ran_within_the_bounds_and_the_budget_holds(
    law: Law, start: Candidate, gib: float, budget_s: float
) -> None:
    search = Search(make(LISTS), start, limits=[Limit("memory", gib * GIB)], budget_s=budget_s)
    found = search_with(search, LawfulMachine(law), GOAL)
    assert search.spent_s <= max(budget_s, 17.0) + 1e-9
    assert math.isclose(found.search_s + found.confirm_s, search.spent_s)
    if found.leader is None:
        return
    rate, memory = law(found.leader.settings)
    assert rate is not None
    assert memory < gib * GIB


@settings(max_examples=12)
@given(laws, starts)
def test_without_noise_it_ends_within_its_indifference_of_the_best(law: Law, start: Candidate) -> None:
    space = make(LISTS)
    search = Search(space, start, budget_s=1e5)
    found = search_with(search, LawfulMachine(law), GOAL)
    best = max(law(one.settings)[0] or 0.0 for one in space.candidates)
    kept = law(found.chosen(start).settings)[0] or 0.0
    slack = 1.0 + search.rules.indifferent if law(start.settings)[0] else 1.1  # else nothing can be confirmed
    assert kept >= best / slack**3
    assert all(one.pairs >= 4 for one in found.confirmed)


def test_it_starts_from_the_defaults_and_walks_the_larger_sizes_in_one_process() -> None:
    space = make(LISTS)
    start = pick(space, batch_size=32, precision="bf16", compile="default")
    machine = LawfulMachine(lawful(30.0, {"compile": {"off": 0.5}, "precision": {"fp16": 0.8}}, 0.1))
    found = search_with(Search(space, start, budget_s=600.0), machine, GOAL)
    first, second, *_ = machine.asked
    assert isinstance(first, Screening)
    assert isinstance(second, Screening)
    assert [one.key for one in first.candidates] == [start.key]
    assert [one.settings["batch_size"] for one in second.candidates] == [64, 128, 256]
    assert found.champion.settings == {"batch_size": 256, "precision": "bf16", "compile": "default"}
    assert min(step.candidate.batch or 0.0 for step in found.path) == 32.0, "smaller ones cannot win here"
    (only,) = found.confirmed
    assert (only.verdict, only.pairs, only.confidence) == (BETTER, 4, 0.9706)


def test_smaller_sizes_are_measured_where_no_larger_one_is_left() -> None:
    falling: Law = lambda chosen: (1000.0 / chosen["batch_size"], GIB)  # noqa: E731
    space = make(SIZES)
    found = search_with(Search(space, pick(space, batch_size=32), budget_s=900.0), LawfulMachine(falling), GOAL)
    assert found.champion.settings == {"batch_size": 8}


def test_rivals_are_dropped_by_intervals_and_never_by_values() -> None:
    space = make({"compile": ["off", "default", "max-autotune"]})
    off, default, tuned = space.candidates
    search = Search(space, off, budget_s=1e4)
    search.tell(Result(off, 100.0, 60.0, 170.0, cost_s=10.0))
    search.tell(Result(default, 140.0, 90.0, 220.0, cost_s=10.0))
    search.tell(Result(tuned, 20.0, 19.0, 21.0, cost_s=10.0))
    assert search.dropped(off) is None, "its interval overlaps the leader's"
    assert search.dropped(tuned) == "shown to be worse"
    leader = search.leader()
    assert leader is not None
    assert leader.candidate == off, "a default stays until another value is shown to be better"
    ask = search.ask()
    assert ask is not None
    assert ask.why == "not decided yet"


def test_a_run_without_an_interval_drops_nothing_and_is_not_dropped() -> None:
    """A single step of a busy machine, 62 tokens/s beside 157, was once "shown to be worse"."""
    space = make({"batch_size": [4, 8]})
    small, start = space.candidates
    search = Search(space, start, budget_s=1e4)
    search.tell(Result(start, 157.0, 137.0, 180.0, cost_s=10.0))
    search.tell(Result(small, 62.0, has_interval=False, cost_s=10.0))
    assert search.dropped(small) is None
    assert [one.candidate for one in search.open_against(start)] == [small]
    search.tell(Result(small, 60.0, 59.0, 61.0, cost_s=10.0))
    assert search.dropped(small) == "shown to be worse", "a run with an interval shows it"
    alone = Search(space, start, budget_s=1e4)
    alone.tell(Result(start, 157.0, has_interval=False, cost_s=10.0))
    alone.tell(Result(small, 62.0, 61.0, 63.0, cost_s=10.0))
    assert alone.dropped(small) is None


def test_a_rate_without_an_interval_is_read_as_such() -> None:
    space = make(SIZES)
    rate = record_of_parts({"metrics": {"throughput": {"value": 62.4, "low": None, "high": None}}})
    assert not result_of(rate, space.candidates[0], GOAL, 10.0).has_interval
    quality = record_of_parts({"metrics": {"time_to_quality": {"value": 30.0}}})
    assert result_of(quality, space.candidates[0], GOALS["time-to-quality"], 40.0).has_interval


def test_the_defaults_are_not_kept_on_single_runs() -> None:
    """The start leads by one run of each: it and the next best run once more, and the spread is then a seen one."""
    falling: Law = lambda chosen: (1000.0 / chosen["batch_size"], GIB)  # noqa: E731
    space = make({"batch_size": [4, 8, 16]})
    search = Search(space, pick(space, batch_size=4), budget_s=100.0)
    machine = LawfulMachine(falling)
    found = search_with(search, machine, GOAL)
    assert found.decided(search.start)
    assert machine.asked[-1].why == "a repeat"
    assert [len(search.runs_of(one)) for one in space.candidates] == [2, 2, 1]

    first = iter([1.0, 1.0, 1.0, 0.3])  # the repeat of the start is another matter than its first run
    disturbed: Law = lambda chosen: (1000.0 / chosen["batch_size"] * next(first, 1.0), GIB)  # noqa: E731
    search = Search(space, pick(space, batch_size=4), budget_s=80.0)
    assert not search_with(search, LawfulMachine(disturbed), GOAL).decided(search.start)


def test_a_wide_interval_that_overlaps_the_defaults_keeps_the_question_open() -> None:
    space = make({"compile": ["off", "default"]})
    off, default = space.candidates
    search = Search(space, off, budget_s=1e4)
    search.tell(Result(off, 1750.0, 1300.0, 2350.0))
    search.tell(Result(default, 820.0, 450.0, 1400.0))
    assert [one.candidate for one in search.open_against(off)] == [default]


def test_overlapping_intervals_give_no_advice_and_the_budget_is_spent() -> None:
    """1,043 ± 710 % and 51 s unspent was once advice to keep the start."""
    flat: Law = lambda _: (1000.0, GIB)  # noqa: E731
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=8), budget_s=400.0)
    found = search_with(search, LawfulMachine(flat, spread=0.2), GOAL)
    assert not found.decided(search.start)
    assert search.budget_s - search.spent_s < 2 * 18.0 * 1.05, "less than one more pair is left"
    assert found.undecided or found.open


def test_a_budget_too_small_for_four_pairs_gives_no_advice_on_a_rival() -> None:
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=8), budget_s=90.0)
    found = search_with(search, LawfulMachine(lawful(20.0, {}, 0.1)), GOAL)
    assert found.leader is not None
    assert found.leader.settings == {"batch_size": 64}
    assert not found.confirmed
    assert found.short_s > 0.0
    assert not found.decided(search.start)


def test_what_the_budget_did_not_reach_is_told_and_leaves_it_undecided() -> None:
    space = make({"batch_size": [8], "compile": ["off", "default"], "fused": [False, True]})
    search = Search(space, pick(space, batch_size=8, compile="off", fused=False), budget_s=40.0)
    found = search_with(search, LawfulMachine(lawful(1.0, {"compile": {"default": 0.5}}, 0.1)), GOAL)
    assert [one.settings["fused"] for one in found.left] == [True]
    assert not found.decided(search.start)


def test_a_run_with_a_failed_check_never_wins() -> None:
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=8), budget_s=900.0)
    machine = LawfulMachine(lawful(20.0, {}, 0.1), fails=lambda chosen: chosen["batch_size"] > 16)
    found = search_with(search, machine, GOAL)
    assert found.champion.settings == {"batch_size": 16}
    assert search.dropped(pick(space, batch_size=64)) == "failed check: parameters"


def test_a_check_that_fails_in_the_a_b_ends_it_without_a_verdict() -> None:
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=8), budget_s=900.0)
    machine = LawfulMachine(lawful(20.0, {}, 0.1))
    machine.fails = lambda _: any(isinstance(ask, PairRun) for ask in machine.asked)
    found = search_with(search, machine, GOAL)
    assert not found.confirmed
    assert not found.decided(search.start)


def test_a_start_without_memory_is_no_baseline() -> None:
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=64), budget_s=900.0)
    found = search_with(search, LawfulMachine(lawful(20.0, {}, 2.0)), GOAL)
    assert (found.unusable, found.leader) == (OUT_OF_MEMORY, pick(space, batch_size=32))
    assert not found.decided(search.start)


@pytest.mark.parametrize(("screenings", "better"), [(3, 1), (1, 2)])
def test_two_changes_that_gain_a_little_each_are_found_together(screenings: int, better: int) -> None:
    """One screening cannot tell them apart: the pairs do, and the search goes on around what they show."""
    lists = {"precision": ["fp16", "bf16"], "compile": ["off", "default"]}
    law = lawful(1.0, {"precision": {"fp16": 0.97}, "compile": {"off": 0.97}}, 0.1)
    space = make({"batch_size": [8], **lists})
    start = pick(space, batch_size=8, precision="fp16", compile="off")
    search = Search(space, start, budget_s=3000.0, rules=Rules(most_screenings=screenings))
    found = search_with(search, LawfulMachine(law), GOAL)
    assert found.champion.settings == {"batch_size": 8, "precision": "bf16", "compile": "default"}
    assert [one.verdict for one in found.confirmed].count(BETTER) == better


def test_advice_is_rarely_wrong_where_nothing_differs() -> None:
    """Screening picks the highest of several, so its own values must not decide."""
    flat: Law = lambda _: (1000.0, GIB)  # noqa: E731
    space = make(SIZES)
    wrong = 0
    for seed in range(100):
        search = Search(space, pick(space, batch_size=8), budget_s=400.0)
        found = search_with(search, LawfulMachine(flat, spread=0.02, rng=random.Random(seed)), GOAL)
        wrong += found.champion.key != search.start.key
    assert wrong <= 10, "5 % of the A/Bs, of which there may be two"


def test_out_of_memory_prunes_the_larger_batches_of_its_series_alone() -> None:
    space = make(LISTS)
    start, full = space.candidates[0], Candidate((("batch_size", 64), ("precision", "bf16"), ("compile", "off")))
    search = Search(space, start, budget_s=1e4)
    search.tell(Result(full, None, failure="out-of-memory", cost_s=9.0))
    pruned = {one.key for one in space.candidates if search.pruned(one)}
    sizes = {batch for batch in LISTS["batch_size"] if batch >= 64}
    expected = {Candidate((("batch_size", b), ("precision", "bf16"), ("compile", "off"))).key for b in sizes}
    assert pruned == expected
    assert search.dropped(full) == "out-of-memory"


def test_a_bound_that_was_not_measured_is_not_kept() -> None:
    space = make({"compile": ["off", "default"]})
    search = Search(space, space.candidates[0], limits=[Limit("power", 300.0)], budget_s=1e4)
    search.tell(Result(space.candidates[0], 100.0, limited={"power": None}, cost_s=10.0))
    assert search.leader() is None


def test_the_cost_of_a_walk_is_one_process_and_every_size() -> None:
    space = make(LISTS)
    compiled = pick(space, batch_size=8, precision="bf16", compile="default")
    plain = pick(space, batch_size=8, precision="bf16", compile="off")
    search = Search(space, plain, budget_s=1e4)
    search.tell(Result(plain, 1.0, cost_s=10.0, own_s=4.0, measured_s=2.0))
    search.tell(Result(compiled, 1.0, cost_s=62.0, own_s=56.0, measured_s=2.0))
    larger = pick(space, batch_size=16, precision="bf16", compile="default")
    assert search.cost_of([plain], 2.0) == 10.0
    assert search.cost_of([larger], 2.0) == 62.0
    assert search.cost_of([larger, larger, larger], 2.0) == 6.0 + 3 * 56.0


def test_the_cost_of_a_repeat_is_without_the_compiling_that_the_first_run_paid() -> None:
    """On an H200 the four pairs were put at more than the budget left, by runs that had found a cold compile cache."""
    space = make(SIZES)
    one, other, *_ = space.candidates
    search = Search(space, one, budget_s=1e4)
    for candidate in (one, other):
        search.tell(Result(candidate, 1.0, cost_s=26.0, own_s=20.0, measured_s=2.0))
    assert search.cost_of([one], 3.0) == 6.0 + 3.0 + 18.0
    search.tell(Result(one, 1.0, cost_s=11.0, own_s=5.0, measured_s=2.0))
    assert search.cost_of([one], 3.0) == 6.0 + 3.0 + 3.0
    assert search.cost_of([other], 3.0) == pytest.approx(6.0 + 3.0 + (18.0 + 18.0 + 3.0) / 3)


def test_cold_starts_that_are_over_do_not_cost_the_pairs() -> None:
    """`prony tune gpt-117m batch_size=8..64 --budget 4m` on an H200 spent 131 s on repeats, and made no pair."""

    class ColdAtFirst(LawfulMachine):
        def _make(self, candidate: Candidate, seconds: float, fresh: bool) -> SearchRun:
            made = super()._make(candidate, seconds, fresh)
            if candidate.key in seen:
                return made
            seen.add(candidate.key)
            phases = {**made.record.phases, "cold_start": Phase(15.0)}
            return replace(made, record=replace(made.record, phases=phases), cost_s=made.cost_s + 15.0)

    seen: set[str] = set()
    rates = {8: 474.6, 16: 517.3, 32: 540.6, 64: 548.8}
    space = make(SIZES)
    search = Search(space, pick(space, batch_size=32), budget_s=330.0)
    found = search_with(search, ColdAtFirst(lambda chosen: (rates[chosen["batch_size"]], GIB), spread=0.002), GOAL)
    assert [one.verdict for one in found.confirmed] == [BETTER]
    assert search.spent_s <= search.budget_s


def test_repeats_that_differ_widen_every_interval() -> None:
    space = make(SIZES)
    search = Search(space, space.candidates[0], budget_s=1e4)
    search.tell(Result(space.candidates[0], 100.0))
    narrow = search.estimates()[0]
    search.tell(Result(space.candidates[1], 100.0))
    search.tell(Result(space.candidates[1], 150.0))
    wide = search.estimate_of(space.candidates[0])
    assert wide is not None
    assert wide.high / wide.low > 1.2 > narrow.high / narrow.low


def test_the_sides_of_an_a_b_take_turns_abba() -> None:
    runs = {"A": 0, "B": 0}
    order = []
    for _ in range(8):
        side = next_side(runs["A"], runs["B"])
        runs[side] += 1
        order.append(side)
    assert "".join(order) == "ABBAABBA"


@pytest.mark.parametrize(("affordable", "looked"), [(3, ()), (4, (4,)), (5, (4,)), (6, (4, 6)), (99, (4, 16))])
def test_an_a_b_is_looked_at_after_four_pairs_and_at_the_end_of_the_budget(
    affordable: int, looked: tuple[int, ...]
) -> None:
    assert interim_analyses(affordable) == looked


def test_an_a_b_says_better_worse_the_same_or_nothing_and_never_on_three_pairs() -> None:
    sides = make({"compile": ["off", "default"]}).candidates
    a = [100.0, 103.0, 106.0, 109.0]  # drifts, and both sides alike

    def said(*gains: float) -> Confirmation | None:
        b = [value * gain for value, gain in zip(a, gains, strict=False)]
        return confirmation((sides[0], sides[1]), a[: len(b)], b, 1, 0.01)

    assert said(1.5, 1.5, 1.5) is None
    found = [said(1.02, 1.021, 1.019, 1.02), said(0.9, 0.91, 0.9, 0.9), said(1.0, 1.001, 0.999, 1.0)]
    assert [one.verdict for one in found if one] == [BETTER, WORSE, SAME]
    noisy = said(1.1, 0.9, 1.2, 0.95)
    assert noisy is not None
    assert noisy.verdict == UNDECIDED


def test_nothing_that_ran_is_no_advice() -> None:
    found = SearchOutcome(Candidate((("batch_size", 8),)))
    assert not found.decided(found.champion)
    assert found.chosen(found.champion) == found.champion
    assert Rules().between_runs == 0.01
