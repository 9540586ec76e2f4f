"""What a search wants more of, and within what: from a record to a result. The words of --goal and --within."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prony.plan.search_space import Candidate
from prony.plan.search_terms import Limit, Result, Rules
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.record import failed_checks
from prony_node.contract.verification import is_unverified

# A counter that ticks ten times a second is known to 2 % after 5 s and to 1 % after 10 s.
ENERGY_RULES = Rules(screen_s=5.0, confirm_s=10.0)
# A run to a quality takes as long as it takes, and seeds differ by several per cent.
QUALITY_RULES = Rules(screen_s=0.0, confirm_s=0.0, indifferent=0.05, between_runs=0.05)
FAILED_CHECK = "failed check"
OWN_PHASES = (
    "build",
    "data",
    "generate",
    "stage",
    "cold_start",
    "warm_up",
    "steady",
    "evaluation",
    "latency",
    "teardown",
)


@dataclass(frozen=True)
class Goal:
    """A metric, and whether less of it is better."""

    name: str
    metric: str
    less: bool = False
    rules: Rules = field(default_factory=Rules)


GOALS = {
    goal.name: goal
    for goal in (
        Goal("throughput", "throughput"),
        Goal("energy", "samples_per_wh", rules=ENERGY_RULES),
        Goal("time-to-quality", "time_to_quality", less=True, rules=QUALITY_RULES),
    )
}
# What --within bounds: its metrics, of which the first that a record has counts, and whether it grows with the batch.
BOUNDED = {
    "memory": (("peak_memory", "peak_memory_host"), True),
    "power": (("power",), False),
    "latency": (("latency_p99", "step_time"), True),
}
UNITS = {
    "memory": {"GiB": 2.0**30, "MiB": 2.0**20, "GB": 1e9, "MB": 1e6},
    "power": {"W": 1.0, "kW": 1e3},
    "latency": {"s": 1.0, "ms": 1e-3},
}


def find_goal(name: str) -> Goal:
    if name not in GOALS:
        raise unknown("goal", name, GOALS)
    return GOALS[name]


def parse_limits(texts: Iterable[str]) -> list[Limit]:
    """`memory<40GiB` and the like."""
    return [_parse_limit(text) for text in texts]


def _parse_limit(text: str) -> Limit:
    match = re.fullmatch(r"\s*([a-z_]+)\s*<=?\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", text)
    if match is None:
        raise RequestError(f"--within {text} is not possible: give a bound with its unit, such as memory<40GiB")
    name, number, unit = match.groups()
    if name not in BOUNDED:
        raise unknown("bound", name, BOUNDED)
    if unit not in UNITS[name]:
        raise unknown(f"unit of {name}", unit, UNITS[name])
    if float(number) <= 0.0:
        raise RequestError(f"--within {text} is not possible: nothing stays below {number}")
    return Limit(name, float(number) * UNITS[name][unit], BOUNDED[name][1])


def result_of(record: Mapping[str, Any], candidate: Candidate, goal: Goal, cost_s: float, fresh: bool = True) -> Result:
    """What a record says about a candidate. A run with a failed check, or without the goal's metric, never wins."""
    metric = record["metrics"].get(goal.metric) or {}
    value = metric.get("value")
    low, high = metric.get("low"), metric.get("high")
    failure = (record.get("failure") or {}).get("kind") if record["status"] != "ok" else None
    failed = failed_checks(record)
    if failure is None and failed:
        failure = f"{FAILED_CHECK}: {', '.join(failed)}"
    if failure is None and is_unverified(record):
        failure = "unverified: it has no manifest"
    if failure is None and (value is None or not value > 0.0):
        failure = f"no {goal.metric}: {metric.get('reason') or 'it was not measured'}"
    if failure is not None:
        value = low = high = None
    elif goal.less:
        value, low, high = _inverse(value), _inverse(high), _inverse(low)
    phases = record.get("phases") or {}
    own_s = min(own_seconds(record), cost_s)
    measured_s = 0.0 if goal.less else _seconds(phases, ("steady",))  # a run to a quality cannot be made shorter
    return Result(candidate, value, low, high, failure, _limited(record), cost_s, own_s, measured_s, fresh)


def unmeasurable(record: Mapping[str, Any], goal: Goal, limits: Iterable[Limit]) -> str | None:
    """Why no run where this one was made can say what is searched for: the energy goal and power need a sensor."""
    names = [goal.metric] if goal.name == "energy" else []
    names += ["power" for limit in limits if limit.name == "power"]
    if not names or record["status"] != "ok" or (record.get("energy") or {}).get("parts"):
        return None
    metric = record["metrics"].get(names[0]) or {}
    return f"{names[0]} cannot be measured: {metric.get('reason') or 'the record does not say why'}"


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None


def _limited(record: Mapping[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, (metrics, _) in BOUNDED.items():
        values = [(record["metrics"].get(metric) or {}).get("value") for metric in metrics]
        found[name] = next((float(value) for value in values if value is not None), None)
    return found


def own_seconds(record: Mapping[str, Any]) -> float:
    """What a size took of its process's time, from its build on."""
    return _seconds(record.get("phases") or {}, OWN_PHASES)


def _seconds(phases: Mapping[str, Any], names: Iterable[str]) -> float:
    return math.fsum(float((phases.get(name) or {}).get("seconds") or 0.0) for name in names)
