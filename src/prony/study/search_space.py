"""What a search wants and where it looks: goals, limits, settings, candidates and results."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prony.study.request import split_words, with_loader
from prony.study.space import known_settings, split_values
from prony_node.contract.errors import ParameterError, RequestError, unknown
from prony_node.contract.record import Phase, Record
from prony_node.contract.run_folder import is_unverified
from prony_node.contract.settings import Value, join_kernels, kernel_names
from prony_node.contract.trial import Trial, reads_data_set
from prony_node.workloads.config import Workload

BATCH = "batch_size"
MOST_TRIALS = 2000  # each is looked at before every run
REACH = 8  # times the default batch, up and down, where nobody says what to search


@dataclass(frozen=True)
class Candidate:
    """One point of the space: the values of the searched settings."""

    values: tuple[tuple[str, Value], ...]

    @property
    def settings(self) -> dict[str, Value]:
        return dict(self.values)

    @property
    def key(self) -> str:
        """The same for the same values, whatever their order was on the command line."""
        return json.dumps(dict(sorted(self.values)))

    @property
    def series(self) -> str:
        """What trials that differ in the batch size alone share."""
        return json.dumps({name: value for name, value in sorted(self.values) if name != BATCH})

    def replaced(self, name: str, value: Value) -> Candidate:
        return Candidate(tuple((one, value if one == name else had) for one, had in self.values))

    @property
    def batch(self) -> float | None:
        value = self.settings.get(BATCH)
        return float(value) if isinstance(value, int) else None


@dataclass(frozen=True)
class Space:
    """Lists of values, the trials they make, and those of them that cannot be."""

    lists: dict[str, tuple[Value, ...]]
    candidates: tuple[Candidate, ...]
    refused: tuple[str, ...] = ()  # why combinations were left out

    def of_effective(self, effective: Mapping[str, Value]) -> Candidate:
        """The candidate that a run's effective settings are."""
        return Candidate(tuple((name, effective[name]) for name in self.lists if name in effective))


def split_searched(workload: Workload, words: Iterable[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The words of a command line: settings with one value stay as they are, those with several are searched."""
    known = known_settings(workload)
    fixed: dict[str, str] = {}
    searched: dict[str, list[str]] = {}
    for name, text in with_loader(split_words(words, workload.own_settings())).items():
        values = split_values(known[name], text)
        if len(values) == 1:
            fixed[name] = values[0]
        else:
            searched[name] = values
    if "auto" in searched.get(BATCH, ()):
        raise RequestError("batch_size=auto is the largest that fits, not the best; tune takes numbers: 16..4096")
    return fixed, searched


def make_space(workload: Workload, fixed: Mapping[str, Value], lists: Mapping[str, Sequence[object]]) -> Space:
    """Every combination of the values that can work together; refused when none can, or when they are too many."""
    known = known_settings(workload)
    typed = {name: tuple(dict.fromkeys(known[name].parse(value) for value in lists[name])) for name in lists}
    count = math.prod(len(values) for values in typed.values())
    if count > MOST_TRIALS:
        raise RequestError(f"{count} combinations are more than tune looks through ({MOST_TRIALS}); leave some out")
    candidates, refused = [], []
    for values in itertools.product(*typed.values()):
        candidate = Candidate(tuple(zip(typed, values, strict=True)))
        try:
            workload.parse({**fixed, **candidate.settings})
        except RequestError as error:
            refused.append(str(error))
            continue
        candidates.append(candidate)
    if not candidates:
        raise RequestError(f"no combination of these settings can work: {refused[0]}")
    return Space(typed, tuple(candidates), tuple(dict.fromkeys(refused)))


def default_lists(
    workload: Workload, fixed: Mapping[str, Value], effective: Mapping[str, Value]
) -> dict[str, list[Value]]:
    """What is worth searching where nobody says: around the defaults, and nothing that changes a step's mathematics
    but its size."""
    lists: dict[str, list[Value]] = {}
    batch, mode = effective.get(BATCH), str(effective.get("mode", "train"))
    if isinstance(batch, int) and not workload.operation:
        sizes = [batch * REACH // 2**step for step in range(2 * REACH.bit_length() - 1)]
        lists[BATCH] = sorted({size for size in sizes if size >= workload.least(mode)})
    if effective.get("device") != "cpu" and not workload.operation and not workload.varies:
        lists["compile"] = ["off", "default"]
    if workload.memory_format == "channels_last":
        lists["memory_format"] = ["contiguous", "channels_last"]
    if reads_data_set(effective) or effective.get("data") == "host":
        workers = effective.get("workers")
        lists["workers"] = sorted({0, int(workers), 2 * int(workers)}) if isinstance(workers, int) else [0, 4]
    if effective.get("device") != "cpu":
        lists["kernels"] = list(_kernel_choices(workload, mode, effective))
    return {name: values for name, values in lists.items() if name not in fixed and len(values) > 1}


def _kernel_choices(workload: Workload, mode: str, effective: Mapping[str, Value]) -> list[str]:
    """With and without each kernel; the attention kernel that is asked first stays."""
    kernels = [kernel.name for kernel in workload.kernels_in(mode) if not kernel.orders_attention]
    stays = [name for name in kernel_names(effective.get("kernels")) if name not in kernels]
    chosen = itertools.product((False, True), repeat=len(kernels))
    return [join_kernels([*stays, *itertools.compress(kernels, one)]) for one in chosen]


def trial_of(workload: Workload, fixed: Mapping[str, Value], candidate: Candidate) -> Trial:
    return Trial(workload.name, workload.parse({**fixed, **candidate.settings}))


@dataclass(frozen=True)
class Rules:
    """How much certainty is worth how much machine time."""

    screen_s: float = 2.0  # measured time of each size in a screening
    confirm_s: float = 3.0  # and of each run of the A/B at the end
    indifferent: float = 0.01  # two settings that the pairs show to be closer than this are the same
    between_runs: float = 0.01  # relative SD of repeats in fresh processes that is assumed before any was seen
    most_screenings: int = 3  # of one setting


@dataclass(frozen=True)
class Result:
    """What one run or screening gave. `value` is what the goal wants more of; None where it failed."""

    candidate: Candidate
    value: float | None
    low: float | None = None
    high: float | None = None
    failure: str | None = None
    limited: dict[str, float | None] = field(default_factory=dict)  # what --within bounds: its metrics
    cost_s: float = 0.0  # machine time; the first size of a process also pays its start and end
    own_s: float = 0.0  # of that, this size's own: build, cold start, warm-up and measuring
    measured_s: float = 0.0  # of that, the measuring
    fresh: bool = True  # whether it was the first of its process
    has_interval: bool = True  # without one a value says nothing yet


@dataclass(frozen=True)
class Limit:
    """`memory<40GiB`: a metric that must stay below a value; `grows` says that a larger batch needs more of it."""

    name: str
    below: float
    grows: bool = True


@dataclass(frozen=True)
class Screening:
    """Settings that differ in the batch size alone, to be screened in this order in one process, and why."""

    candidates: tuple[Candidate, ...]
    seconds: float
    why: str


@dataclass(frozen=True)
class PairRun:
    """One run of an A/B, in a fresh process."""

    candidate: Candidate
    seconds: float
    why: str
    pair: int  # its pair's number, from 0 on


@dataclass(frozen=True)
class CandidateEstimate:
    """What all runs of a setting say together. The 95 % interval includes what repeats differ by."""

    candidate: Candidate
    value: float
    low: float
    high: float
    runs: int
    variance: float  # of the logarithm


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
        raise ParameterError("within", f"{text} is not possible: give a bound with its unit, such as memory<40GiB")
    name, number, unit = match.groups()
    if name not in BOUNDED:
        raise unknown("bound", name, BOUNDED)
    if unit not in UNITS[name]:
        raise unknown(f"unit of {name}", unit, UNITS[name])
    if float(number) <= 0.0:
        raise ParameterError("within", f"{text} is not possible: nothing stays below {number}")
    return Limit(name, float(number) * UNITS[name][unit], BOUNDED[name][1])


def result_of(record: Record, candidate: Candidate, goal: Goal, cost_s: float, fresh: bool = True) -> Result:
    """What a record says about a candidate. A run with a failed check, or without the goal's metric, never wins."""
    metric = record.metrics.get(goal.metric)
    value, low, high = (None, None, None) if metric is None else (metric.value, metric.low, metric.high)
    failure = _why_unusable(record, goal)
    if failure is not None:
        value = low = high = None
    elif goal.less:
        value, low, high = _inverse(value), _inverse(high), _inverse(low)
    own_s = min(own_seconds(record), cost_s)
    # A run to a quality cannot be made shorter.
    measured_s = 0.0 if goal.less else _seconds(record.phases, ("steady",))
    # A time to a quality has no interval within its run; a rate has none where too few steps were timed.
    has_interval = goal.less or (low is not None and high is not None)
    return Result(
        candidate, value, low, high, failure, _limited(record), cost_s, own_s, measured_s, fresh, has_interval
    )


def _why_unusable(record: Record, goal: Goal) -> str | None:
    if record.failure is not None:
        return record.failure.kind
    if record.failed_checks:
        return f"{FAILED_CHECK}: {', '.join(record.failed_checks)}"
    if is_unverified(record):
        return "unverified: it has no manifest"
    value = record.value(goal.metric)
    if value is None or not value > 0.0:
        return f"no {goal.metric}: {record.reason(goal.metric) or 'it was not measured'}"
    return None


def unmeasurable(record: Record, goal: Goal, limits: Iterable[Limit]) -> str | None:
    """Why no run where this one was made can say what is searched for: the energy goal and power need a sensor."""
    names = [goal.metric] if goal.name == "energy" else []
    names += ["power" for limit in limits if limit.name == "power"]
    if not names or record.status != "ok" or (record.energy is not None and record.energy.parts):
        return None
    return f"{names[0]} cannot be measured: {record.reason(names[0]) or 'the record does not say why'}"


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None


def _limited(record: Record) -> dict[str, float | None]:
    values = {name: [record.value(metric) for metric in metrics] for name, (metrics, _) in BOUNDED.items()}
    return {name: next((one for one in found if one is not None), None) for name, found in values.items()}


def own_seconds(record: Record) -> float:
    """What a size took of its process's time, from its build on."""
    return _seconds(record.phases, OWN_PHASES)


def _seconds(phases: Mapping[str, Phase], names: Iterable[str]) -> float:
    return math.fsum(phases[name].seconds or 0.0 for name in names if name in phases)
