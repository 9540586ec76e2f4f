"""Runs of one trial over seeds and repeats: mean, deviation and interval of what they found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony.analysis.learning import learning_of
from prony.analysis.settings import Record, chosen_settings, settings_of
from prony.analysis.stated import number, word
from prony_node.stats import mean_interval

SPREAD = ("quality", "time_to_quality", "energy_to_quality", "throughput", "samples_per_wh")


@dataclass(frozen=True)
class Spread:
    """One metric over the seeds of a trial, or over its repeats where all have one seed."""

    name: str
    unit: str
    count: int  # independent values: seeds, or runs
    mean: float
    low: float | None  # 95 %, of the mean, by Student's t; None with one value
    high: float | None
    deviation: float | None
    least: float
    most: float


@dataclass(frozen=True)
class Group:
    """Good runs that differ in the seed and the repeat alone."""

    workload: str
    settings: dict[str, Any]  # as requested, without the seed
    seeds: list[Any]
    records: list[Record]
    left_out: int  # runs that failed or were interrupted
    until: str | None  # the target of all of them
    reached: int  # how many runs reached it
    spreads: list[Spread]


def groups(records: Sequence[Record], names: Sequence[str] = SPREAD) -> list[Group]:
    """The trials among these records, in order, each with the spread of its metrics."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(_key(record), []).append(record)
    return [_group(those, names) for those in found.values()]


def independent(records: Sequence[Record], name: str) -> list[float]:
    """A metric's independent values: one a seed, the mean of its runs, or one a run where there is one seed.

    Runs of one seed share their weights and the order of their data, so they are no three draws of a seed.
    """
    by_seed: dict[str, list[float]] = {}
    for record in records:
        value = number((record["metrics"].get(name) or {}).get("value"))
        if value is not None:
            by_seed.setdefault(str(settings_of(record).get("seed")), []).append(value)
    if len(by_seed) == 1:
        return next(iter(by_seed.values()))
    return [mean_interval(values).mean for values in by_seed.values()]


def seeds_of(records: Sequence[Record]) -> list[Any]:
    """The seeds of these records, each once."""
    return list({str(seed): seed for seed in (settings_of(record).get("seed") for record in records)}.values())


def _key(record: Record) -> str:
    """What tells trials apart, and where they were run; the seed does not."""
    trial, place = record["trial"], record.get("fingerprint") or {}
    parts = [trial["workload"], chosen_settings(trial["settings"]), trial.get("file"), place]
    return json.dumps(parts, sort_keys=True, default=str)


def _group(records: list[Record], names: Sequence[str]) -> Group:
    good = [record for record in records if record["status"] == "ok"]
    trial = records[0]["trial"]
    targets = {learning.until for record in good if (learning := learning_of(record))}
    return Group(
        workload=trial["workload"],
        settings=chosen_settings(trial["settings"]),
        seeds=seeds_of(good),
        records=good,
        left_out=len(records) - len(good),
        until=next(iter(targets)) if len(targets) == 1 else None,
        reached=sum(bool((learning := learning_of(record)) and learning.reached) for record in good),
        spreads=[spread for name in names if (spread := _spread(good, name))],
    )


def _spread(records: list[Record], name: str) -> Spread | None:
    values = independent(records, name)
    if not values:
        return None
    metrics = [record["metrics"].get(name) or {} for record in records]
    unit = next((word(metric.get("unit")) for metric in metrics if metric.get("value") is not None), None)
    found = mean_interval(values)
    return Spread(
        name=name,
        unit=unit or "",
        count=len(values),
        mean=found.mean,
        low=found.low,
        high=found.high,
        deviation=found.standard_deviation,
        least=min(values),
        most=max(values),
    )
