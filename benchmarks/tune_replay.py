"""Runs answered from a surface: the search cannot tell them from real ones, since it is given records.

A walk costs the start and end of one process, and for each size its build, cold start, warm-up and window. What a size
gives in a walk differs from its truth as a run of its own would: nothing is shared within a process.
"""

from __future__ import annotations

import random

from prony.study.search import Search, SearchOutcome, SearchRun, next_runs
from prony.study.search_space import Candidate, Goal, PairRun, Screening
from prony_node.contract.record import (
    RECORD_SCHEMA,
    Facts,
    Failure,
    Metric,
    Phase,
    Provenance,
    Record,
    RecordedTrial,
    WorkDone,
)
from prony_node.stats import StopRule, Tracker
from tune_surface import Entry, Surface

TICK_S = 0.1  # of an energy counter: a window of W seconds is known to 0.1 / W


def metric(unit: str, value: float, low: float | None = None, high: float | None = None) -> Metric:
    return Metric(value, low, high, unit=unit, scope="all devices", source="a surface")


class Replay:
    """A machine that knows the trials of a surface alone. Each run draws its own stretch of the step series."""

    def __init__(self, surface: Surface, seed: int, exact: bool = False) -> None:
        self.surface, self.exact = surface, exact
        self.rng = random.Random(seed)
        self.entries = {Candidate(tuple(entry.settings.items())).key: entry for entry in surface.entries}
        self.spent_s = 0.0
        self.processes = 0

    def entry(self, candidate: Candidate) -> Entry:
        return self.entries[candidate.key]

    def screen(self, ask: Screening) -> list[SearchRun]:
        """Several sizes in one process; the first that fails ends it."""
        made: list[SearchRun] = []
        for candidate in ask.candidates:
            made.append(self._make(self.entry(candidate), ask.seconds, fresh=not made))
            if made[-1].record.status != "ok":
                break
        return made

    def run(self, ask: PairRun) -> SearchRun:
        return self._make(self.entry(ask.candidate), ask.seconds, fresh=True)

    def _make(self, entry: Entry, seconds: float, fresh: bool) -> SearchRun:
        self.processes += fresh
        record, measured_s = self._failed(entry) if entry.status != "ok" else self._good(entry, seconds)
        cost_s = (entry.around_s if fresh else entry.own_s) + measured_s
        self.spent_s += cost_s
        return SearchRun(record, cost_s, fresh)

    def _failed(self, entry: Entry) -> tuple[Record, float]:
        failure = Failure(entry.kind, entry.message)  # type: ignore[arg-type]  # as the surface has it
        return self._record(entry, {}, {}, failure), 0.0

    def _good(self, entry: Entry, seconds: float) -> tuple[Record, float]:
        off = 1.0 if self.exact else 1.0 + self.rng.gauss(0.0, self.surface.deviation_of(entry))
        tracker = Tracker(StopRule(tolerance=0.01, min_time_s=min(10.0, seconds), max_time_s=seconds))
        position = 0 if self.exact else self.rng.randrange(len(entry.block_us))
        measured_s, ended = 0.0, False
        while not ended:
            duration_s = 1e-6 * off * entry.block_us[position % len(entry.block_us)]
            tracker.add(duration_s, entry.steps_a_block)
            measured_s, position = measured_s + duration_s, position + 1
            ended = tracker.due() and tracker.decide().stop
        rate = self._rate(entry, tracker, measured_s)
        metrics = {"throughput": rate, "cold_start": metric("s", entry.cold_start_s)}
        if entry.memory is not None:
            metrics["peak_memory"] = metric("B", entry.memory)
        if entry.power_w:
            metrics |= self._energy(entry, rate.value or 0.0, measured_s)
        phases = {"build": Phase(entry.own_s), "steady": Phase(measured_s)}
        return self._record(entry, metrics, phases), measured_s

    def _energy(self, entry: Entry, rate: float, measured_s: float) -> dict[str, Metric]:
        """Power as recorded, off by what a counter's ticks leave unknown."""
        assert entry.power_w is not None
        unknown = TICK_S / measured_s
        power_w = entry.power_w
        if not self.exact:
            power_w *= 1.0 + self.rng.uniform(-unknown, unknown) + self.rng.gauss(0.0, self.surface.power_deviation)
        value = 3600.0 * rate / power_w
        low, high = value * (1.0 - unknown), value * (1.0 + unknown)
        return {
            "power": metric("W", power_w),
            "samples_per_wh": metric(f"{self.surface.unit}/Wh", value, low, high),
        }

    def _rate(self, entry: Entry, tracker: Tracker, measured_s: float) -> Metric:
        estimate = tracker.estimate()
        units = entry.units_a_step or 0.0
        if self.exact or estimate is None:  # of a step longer than the run there is no interval
            return metric(f"{self.surface.unit}/s", entry.rate, entry.rate, entry.rate)
        ends = (estimate.step_time_s, estimate.step_time_high_s, estimate.step_time_low_s)
        value, low, high = (units / one for one in ends)
        return metric(f"{self.surface.unit}/s", value, low, high)

    def _record(
        self, entry: Entry, metrics: dict[str, Metric], phases: dict[str, Phase], failure: Failure | None = None
    ) -> Record:
        settings = {**self.surface.fixed, **entry.settings}
        return Record(
            schema=RECORD_SCHEMA,
            id=f"replay-{self.processes}",
            trial=RecordedTrial(self.surface.workload, settings, effective=settings),
            status="ok" if failure is None else "failed",
            failure=failure,
            metrics=metrics,
            phases=phases,
            checks=(),
            work=WorkDone(),
            fingerprint=Provenance(),
            facts=Facts(),
        )


def search_with(search: Search, replay: Replay, goal: Goal) -> SearchOutcome:
    """The search, answered by a replay."""
    asks = next_runs(search, goal)
    try:
        ask = next(asks)
        while True:
            ask = asks.send(replay.screen(ask) if isinstance(ask, Screening) else [replay.run(ask)])
    except StopIteration as end:
        found: SearchOutcome = end.value
        return found
