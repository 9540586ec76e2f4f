"""Runs answered from a surface: the search cannot tell them from real ones, since it is given records."""

from __future__ import annotations

import random
from typing import Any

from prony.plan.search_space import Candidate
from prony_node.stats import StopRule, Tracker
from tune_surface import Entry, Surface


class Replay:
    """A machine that knows the trials of a surface alone. Each run draws its own stretch of the step series."""

    def __init__(self, surface: Surface, seed: int, exact: bool = False) -> None:
        self.surface, self.exact = surface, exact
        self.rng = random.Random(seed)
        self.entries = {Candidate(tuple(entry.settings.items())).key: entry for entry in surface.entries}
        self.spent_s = 0.0
        self.runs = 0

    def truth(self, candidate: Candidate) -> float:
        return self.entries[candidate.key].rate

    def run(self, candidate: Candidate, seconds: float) -> tuple[dict[str, Any], float]:
        """A record of a run that measured for so long at most, and what it cost in seconds."""
        entry = self.entries[candidate.key]
        self.runs += 1
        record, measured_s = self._failed(entry) if entry.status != "ok" else self._good(entry, seconds)
        cost_s = entry.around_s + measured_s
        self.spent_s += cost_s
        return record, cost_s

    def _failed(self, entry: Entry) -> tuple[dict[str, Any], float]:
        failure = {"kind": entry.kind, "message": entry.message}
        return {**self._frame(entry), "status": "failed", "failure": failure, "metrics": {}}, 0.0

    def _good(self, entry: Entry, seconds: float) -> tuple[dict[str, Any], float]:
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
        metrics = {"throughput": rate, "cold_start": {"value": entry.cold_start_s, "unit": "s"}}
        metrics["peak_memory"] = {"value": entry.memory, "unit": "B"}
        if entry.power_w:
            wh = 3600.0 / entry.power_w
            metrics["power"] = {"value": entry.power_w, "unit": "W"}
            metrics["samples_per_wh"] = {k: rate[k] * wh for k in ("value", "low", "high")} | {"unit": "samples/Wh"}
        phases = {"steady": {"seconds": measured_s}}
        return {**self._frame(entry), "status": "ok", "failure": None, "metrics": metrics, "phases": phases}, measured_s

    def _rate(self, entry: Entry, tracker: Tracker, measured_s: float) -> dict[str, Any]:
        estimate = tracker.estimate()
        units = entry.units_a_step or 0.0
        if self.exact or estimate is None:  # of a step longer than the run there is no interval
            value = entry.rate
            return {"value": value, "low": value, "high": value, "unit": f"{self.surface.unit}/s"}
        ends = (estimate.step_time_s, estimate.step_time_high_s, estimate.step_time_low_s)
        value, low, high = (units / one for one in ends)
        return {"value": value, "low": low, "high": high, "unit": f"{self.surface.unit}/s"}

    def _frame(self, entry: Entry) -> dict[str, Any]:
        settings = {**self.surface.fixed, **entry.settings}
        trial = {"workload": self.surface.workload, "settings": settings, "effective": settings, "hash": str(self.runs)}
        facts = {"devices": [{"memory_total_bytes": self.surface.memory_total}]}
        return {"id": f"replay-{self.runs}", "trial": trial, "facts": facts, "checks": [], "phases": {}, "repeat": 0}
