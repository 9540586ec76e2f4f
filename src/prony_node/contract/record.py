"""The record: the immutable result of a run, typed, with its validation and the upgrades from older versions."""

# ruff: noqa: RUF009  optional(), beside() and empty() make dataclass fields

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.facts import DeviceFacts, Facts, Provenance
from prony_node.contract.metrics import METRICS
from prony_node.contract.record_upgrades import add_interval_floor, add_provenance_parts, name_kernels
from prony_node.contract.trial import Plan, check_schema
from prony_node.contract.typed import LARGEST, Absent, JsonObject, Malformed, beside, decode, empty, optional, sparse

Status = Literal["ok", "failed", "interrupted"]
Level = Literal["pass", "unknown", "warn", "fail"]  # from best to worst
FailureKind = Literal[
    "out-of-memory", "exception", "killed", "hung", "lost", "missing-library", "missing-device",
    "time-limit", "node-failure", "rendezvous", "request", "interrupted",
]  # fmt: skip
LEVELS: tuple[str, ...] = get_args(Level)
FAILURES: tuple[str, ...] = get_args(FailureKind)
OUT_OF_MEMORY: FailureKind = "out-of-memory"

Part = TypeVar("Part")
Plain = str | int | float | bool | None  # the value of a setting


@dataclass(frozen=True)
class RecordedTrial:
    """The workload with its settings, as requested and as they took effect on the machine."""

    workload: str  # its name; of a model file with the beginning of the file's hash
    settings: Mapping[str, Plain]  # as requested
    hash: str | None = None  # identity of the request
    effective: Mapping[str, Plain] | None = None  # every setting as it took effect
    effective_hash: str | None = None  # identity of what took effect
    file: JsonObject | None = optional()  # a user's own model file: path and sha256
    more: JsonObject = empty()


@dataclass(frozen=True)
class Failure:
    """Why a run did not end well."""

    kind: FailureKind  # what ended the run
    message: str = ""  # in a sentence
    at_monotonic: float | None = sparse()  # of the rank that failed, by its clock
    more: JsonObject = empty()


@dataclass(frozen=True)
class Stopped:
    """The requested stop rule, and why the measurement ended."""

    tolerance: float | None = None  # relative half-width that was requested
    min_time_s: float | None = None  # least time to measure
    max_time_s: float | None = None  # most time to measure
    reason: str | None = None  # why the measurement ended
    more: JsonObject = empty()


@dataclass(frozen=True)
class Metric:
    """A figure with its interval, unit, scope and source; or null with the reason why it was not measured."""

    value: float | None
    low: float | None = beside("value")  # lower end of the interval
    high: float | None = beside("value")  # upper end of the interval
    unit: str | None = optional()  # such as images/s
    scope: str | None = optional()  # what it covers, such as rank or node
    source: str | None = optional()  # how it was obtained
    interval: str | None = optional()  # what the interval covers
    reason: str | None = optional()  # why there is no value
    more: JsonObject = empty()

    SCHEMA: ClassVar[JsonObject] = {
        "if": {"properties": {"value": {"type": "null"}}},
        "then": {"required": ["reason"], "properties": {"reason": {"type": "string", "minLength": 1}}},
        "else": {
            "required": ["unit", "scope", "source"],
            "properties": {name: {"type": "string", "minLength": 1} for name in ("unit", "scope", "source")},
        },
    }

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.reason:
                raise ValueError("is null without a reason")
        elif not (self.unit and self.scope and self.source):
            absent = "unit" if not self.unit else "scope" if not self.scope else "source"
            raise ValueError(f"has no {absent}")


def measured(
    value: float,
    unit: str,  # such as images/s
    *,
    scope: str,  # what it covers, such as rank or node
    source: str,  # how it was obtained
    low: float | None = None,  # lower end of the interval
    high: float | None = None,  # upper end of the interval
    interval: str | None = None,  # what the interval covers
) -> Metric:
    """A metric that was measured."""
    return Metric(value, low, high, unit, scope, source, interval)


def missing(reason: str) -> Metric:
    """A metric that was not measured, and why: never 0 and never a guess."""
    return Metric(None, reason=reason)


@dataclass(frozen=True)
class CompileCacheUse:
    """How a phase found the compile cache: none, cold, partly warm or warm."""

    state: str | None = sparse()  # none, cold, partly warm or warm
    hits: int | None = sparse()  # compilations found in the cache
    misses: int | None = sparse()  # compilations made
    more: JsonObject = empty()


@dataclass(frozen=True)
class Phase:
    """A part of the run: how long it took, and its steps."""

    seconds: float | None = None  # how long it took
    steps: float | None = None  # steps in it
    compile_cache: CompileCacheUse | None = optional()  # how it found the compile cache
    more: JsonObject = empty()


@dataclass(frozen=True)
class Steady:
    """The steady window and the time per step in it, with its interval."""

    step_time_s: float | None = None  # mean seconds per step in the window
    step_time_low_s: float | None = None  # lower end of its interval
    step_time_high_s: float | None = None  # upper end of its interval
    relative_half_width: float | None = None  # of the interval: the larger of sampling_half_width and half_width_floor
    confidence: float | None = None  # of the interval, such as 0.95
    steps: int | None = None  # in the window
    blocks: int | None = None  # in the window
    independent_blocks: float | None = None  # effective count, after autocorrelation
    window_s: float | None = None  # length of the window
    cut_steps: int | None = None  # before the window: the transient
    cut_s: float | None = None  # seconds before the window
    drift: float | None = None  # relative change over the window
    drift_half_width: float | None = None  # of the drift's interval
    drifting: str | None = None  # yes, no or unknown
    levels: int | None = None  # distinct levels of step time
    level_values_s: tuple[float, ...] = ()  # step time of each level
    autocorrelation: float | None = None  # between neighbouring blocks
    outlier_share: float | None = None  # share of blocks far from the others
    sampling_half_width: float | None = optional()  # what the variation of the series alone gives
    half_width_floor: float | None = optional()  # what a window of this length can support at best
    slowest_event_s: float | None = optional()  # events that recur within this time would have shown (95 %)
    blocks_seen: int | None = optional()  # of the step series: those that the estimate was made from
    period: int | None = optional()  # steps of a round of batches that differ
    drift_limit: float | None = optional()  # a drift that the check steady excludes
    more: JsonObject = empty()


@dataclass(frozen=True)
class Check:
    """Something that was looked at, and what it says of the figures."""

    name: str  # see checks
    level: Level  # from best to worst
    message: str = ""  # what was found
    more: JsonObject = empty()

    SCHEMA: ClassVar[JsonObject] = {"properties": {
        "name": {"type": "string", "minLength": 1}, "level": {"enum": list(LEVELS)}, "message": {"type": "string"},
    }}  # fmt: skip

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("has no name")


@dataclass(frozen=True)
class WorkDone:
    """What went through the model in the steady window, counted: samples, units of the task, steps, devices."""

    samples: float | None = optional()  # in the window
    units: float | None = optional()  # in the window, such as tokens
    steps: float | None = optional()  # in the window
    devices: int | None = optional()  # that took part
    window: str | None = optional()  # which window these belong to
    total_samples: float | None = optional()  # in the whole run
    total_steps: float | None = optional()  # in the whole run
    shapes: JsonObject | None = optional()  # distribution of sizes, where batches differ in shape
    own_synchronisations_per_step: float | None = optional()  # waits for the device that the workload itself makes
    loop_steps: int | None = optional()  # of the measured loop, with the transient that was cut
    optimizer_steps: int | None = optional()  # of those, the updates that were made
    skipped_steps: int | None = optional()  # by a gradient scaler
    epoch_units: float | None = optional()  # of training epochs, for energy to a quality
    more: JsonObject = empty()


@dataclass(frozen=True)
class EnergyBeside:
    """The same window of the same part by another sensor, and how far it is off."""

    sensor: str | None = sparse()
    energy_j: float | None = sparse()
    difference: float | None = sparse()
    allowed: float | None = sparse()  # by the uncertainties of both
    more: JsonObject = empty()


@dataclass(frozen=True)
class EnergyPart:
    """One sampled part of a machine: its energy in the steady window, or why it has none."""

    node: int | None = sparse()  # of several nodes, which
    host: str | None = sparse()  # name of the node
    part: str | None = sparse()  # its name
    scope: str | None = sparse()  # gpu, package, dram, module or node
    label: str | None = sparse()  # name of the part
    idle_power_w: float | None = sparse()  # before the run
    idle_source: str | None = sparse()
    idle_reason: str | None = sparse()
    energy_j: float | None = sparse()  # in the window
    uncertainty_j: float | None = sparse()  # half of the 95 % interval, calibration apart
    window_s: tuple[float, ...] | None = sparse()  # first and last instant
    power_w: float | None = sparse()  # mean
    power_peak_w: float | None = sparse()  # highest reading
    peak_sensor: str | None = sparse()
    method: str | None = sparse()  # counter, or integral of power
    sensor: str | None = sparse()  # id of the sensor
    kind: str | None = sparse()  # counter, average, instantaneous or model
    evidence: str | None = sparse()  # hardware, or documented format
    calibration: float | None = sparse()  # relative, stated by vendor or a study
    readings: int | None = sparse()  # in the window
    period_s: float | None = sparse()  # between two readings or ticks
    largest_gap_s: float | None = sparse()
    beside: EnergyBeside | None = sparse()
    thirds_w: tuple[float, ...] | None = sparse()
    drift: float | None = sparse()
    drift_half_width: float | None = sparse()
    reason: str | None = sparse()  # why there is no figure
    more: JsonObject = empty()


@dataclass(frozen=True)
class NodeEnergy:
    """The energy of the machine in the steady window, of all nodes where there are several."""

    how: str | None = sparse()  # measured, or the sum of devices
    energy_j: float | None = sparse()  # in the window
    uncertainty_j: float | None = sparse()
    seconds: float | None = sparse()
    power_w: float | None = sparse()  # mean
    parts: tuple[str, ...] | None = sparse()
    reason: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class NodeShare:
    """What the devices of one of several nodes used."""

    node: int | None = sparse()  # which of several
    host: str | None = sparse()  # its name
    devices: tuple[str, ...] | None = sparse()
    energy_j: float | None = sparse()  # of its devices
    node_energy_j: float | None = sparse()
    uncertainty_j: float | None = sparse()
    share: float | None = sparse()  # of the power of all nodes
    reason: str | None = sparse()  # why there is no figure
    more: JsonObject = empty()


@dataclass(frozen=True)
class EnergyDetail:
    """What was sampled: the parts of the machine, the node as a whole, and why readers were not there."""

    parts: tuple[EnergyPart, ...] = ()  # what was sampled
    devices: tuple[str, ...] | None = optional()  # parts that took part in the run
    node: NodeEnergy | None = optional()  # the whole machine
    nodes: tuple[NodeShare, ...] | None = optional()  # of several nodes, each
    reasons: Mapping[str, str] = empty()  # why a reader was not there, by reader
    notes: tuple[str, ...] = ()  # what happened to sensors
    more: JsonObject = empty()


@dataclass(frozen=True)
class LearnedEpoch:
    """The state after an epoch: counts and training time since the start, and the scores of the test split."""

    epoch: int | None = sparse()  # number
    steps: int | None = sparse()  # since the start
    samples: int | None = sparse()  # since the start
    training_s: float | None = sparse()  # without evaluation
    evaluation_s: float | None = sparse()
    learning_rate: float | None = sparse()
    loss: float | None = sparse()  # of the test split
    more: JsonObject = empty()  # the score, by its name

    def score(self, name: str) -> float | None:
        """The score of this name; None where it has none, or none that is a number."""
        value: Any = self.loss if name == "loss" else self.more.get(name)
        return value if type(value) in (float, int) and abs(value) <= LARGEST else None


@dataclass(frozen=True)
class TargetReached:
    """Where a target was first reached."""

    epoch: int | None = sparse()  # number
    steps: int | None = sparse()  # since the start
    more: JsonObject = empty()


@dataclass(frozen=True)
class Learning:
    """What a run learned from a data set: its score, the target, and the learning curve."""

    score: str | None = sparse()  # its name: accuracy
    better: str | None = sparse()  # "more" or "less"
    until: str | None = sparse()  # the requested target
    target: float | None = sparse()  # the value to reach
    reached: TargetReached | None = sparse()  # null if it was not
    test_samples: int | None = sparse()  # in the test split
    epochs: int | None = sparse()  # at most this many
    curve: tuple[LearnedEpoch, ...] | None = sparse()  # one entry per epoch
    more: JsonObject = empty()


@dataclass(frozen=True)
class StagedFiles:
    """The files of a data set that were copied to a faster place before the run."""

    folder: str | None = sparse()  # where they lie now
    files: int | None = sparse()  # how many
    bytes: int | None = sparse()  # of all files
    copied_bytes: int | None = sparse()  # of those that were copied
    seconds: float | None = sparse()  # of copying
    more: JsonObject = empty()


@dataclass(frozen=True)
class DataUsed:
    """The data set that a run read."""

    source: str | None = sparse()  # as requested
    kind: str | None = sparse()  # what it was recognised as
    folder: str | None = sparse()  # where it lies
    samples: int | None = sparse()  # for training
    test_samples: int | None = sparse()  # in the test split
    classes: int | None = sparse()  # how many
    bytes: int | None = sparse()  # of its files
    fingerprint: str | None = sparse()  # of names, sizes and some content
    held: str | None = sparse()  # device, memory or files
    decoded_on_device: float | None = sparse()  # share of the last batches
    staged: StagedFiles | None = sparse()  # null if it was not copied
    generated: JsonObject | None = sparse()  # what the manifest of a generated set says of it
    more: JsonObject = empty()


@dataclass(frozen=True)
class StudyTurn:
    """Which study requested a run, and its place in the order."""

    name: str | None = sparse()  # of the study
    part: str | None = sparse()  # of the study
    order: str | None = sparse()  # random or given
    seed: int | None = sparse()  # of the random order
    turn: int | None = sparse()  # position in the order
    more: JsonObject = empty()


@dataclass(frozen=True)
class RankPace:
    """Seconds of a step of a rank by itself, without waiting for others."""

    seconds: float | None = sparse()
    low: float | None = sparse()
    high: float | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class RankWork:
    """What one of several ranks did in the steady window."""

    rank: int | None = sparse()
    node: int | None = sparse()
    host: str | None = sparse()
    device: str | None = sparse()
    steps: int | None = sparse()
    seconds: float | None = sparse()
    total_steps: int | None = sparse()
    begin_s: float | None = sparse()
    cut_s: float | None = sparse()
    step_s: float | None = sparse()
    low_s: float | None = sparse()
    high_s: float | None = sparse()
    common_steps: float | None = sparse()  # of copies: in the window that all share
    pace: RankPace | None = sparse()
    peak_memory: float | None = sparse()
    peak_memory_host: float | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class SlowestRank:
    """Which rank takes the longest for a step by itself."""

    rank: int | None = sparse()
    host: str | None = sparse()
    device: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class ParallelWork:
    """How the ranks of a run worked together."""

    form: str | None = sparse()
    backend: str | None = sparse()
    timeout_s: float | None = sparse()
    micro_batch: int | None = sparse()
    grad_accumulation: int | None = sparse()
    replicas: int | None = sparse()
    global_batch: int | None = sparse()
    mesh: Mapping[str, int] | None = sparse()  # of the parts of a model, by axis
    diagnostic: str | None = sparse()
    window_s: float | None = sparse()  # that all copies share, where they do not wait for each other
    slowest: SlowestRank | None = sparse()
    spread: float | None = sparse()  # how much longer it takes than the fastest
    ranks: tuple[RankWork, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class MessageTime:
    """What a collective took with messages of one size, and the bandwidths that follow."""

    size_bytes: int | None = sparse()
    time_s: float | None = sparse()
    time_low_s: float | None = sparse()
    time_high_s: float | None = sparse()
    algorithm_bandwidth: float | None = sparse()
    bus_bandwidth: float | None = sparse()
    bus_bandwidth_low: float | None = sparse()
    bus_bandwidth_high: float | None = sparse()
    operations: int | None = sparse()
    reason: str | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class CollectiveCurve:
    """A collective over the size of its messages."""

    operation: str | None = sparse()
    ranks: int | None = sparse()
    backend: str | None = sparse()
    factor: float | None = sparse()  # of the bus bandwidth
    note: str | None = sparse()
    curve: tuple[MessageTime, ...] | None = sparse()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Record:
    """The immutable result of a run, good or failed, with the facts it was obtained under."""

    schema: str  # name and version of this format
    id: str  # also the name of the run folder
    trial: RecordedTrial  # what was measured
    status: Status  # failed and interrupted have a failure
    metrics: Mapping[str, Metric]  # by name
    phases: Mapping[str, Phase]  # by name
    checks: tuple[Check, ...]  # in the order they were made
    work: WorkDone  # what was counted
    fingerprint: Provenance  # what the result is tied to
    facts: Facts  # machine and software
    failure: Failure | None = None  # null where status is ok
    repeat: int = 0  # number among the repeats, from 0
    started: str | None = None  # time in UTC
    ended: str | None = None  # time in UTC
    stop: Stopped | None = None  # the stop rule
    unit: str | None = None  # of the work, such as images
    steady: Steady | None = None  # the steady window
    energy: EnergyDetail | None = None  # what was sampled
    study: StudyTurn | None = optional()  # which study requested it
    learning: Learning | None = optional()  # with a data set
    data: DataUsed | None = optional()  # the data set
    parallel: JsonObject | None = optional()  # with several ranks
    collective: JsonObject | None = optional()  # of a collective
    auto_batch: Any = optional()  # tries of batch_size=auto
    binding: Any = optional()  # with bind
    more: JsonObject = empty()

    SCHEMA: ClassVar[JsonObject] = {
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"properties": {"failure": {"type": "null"}}},
        "else": {"required": ["failure"], "properties": {"failure": {"type": "object"}}},
    }

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.failure is None):
            raise ValueError("has a failure exactly when its status is not ok")

    @property
    def devices(self) -> tuple[DeviceFacts, ...]:
        """The devices that took part."""
        return self.facts.devices

    @property
    def device(self) -> DeviceFacts:
        """The first of the devices that took part; one without facts where none is known."""
        return self.devices[0] if self.devices else DeviceFacts()

    @cached_property
    def parallel_work(self) -> ParallelWork | None:
        """What the ranks did; None where the run had one, or ended before they met."""
        return None if self.parallel is None else _typed(ParallelWork, self.parallel, "parallel")

    @cached_property
    def collective_curve(self) -> CollectiveCurve | None:
        """The collective over the size of its messages; None where the run was of another kind."""
        return None if self.collective is None else _typed(CollectiveCurve, self.collective, "collective")

    def metric(self, name: str) -> Metric | None:
        """The metric of this name, if it was measured."""
        found = self.metrics.get(name)
        return found if found is not None and found.value is not None else None

    def value(self, name: str) -> float | None:
        """The value of a metric; None where it was not measured."""
        found = self.metric(name)
        return found.value if found is not None else None

    def reason(self, name: str) -> str | None:
        """Why a metric was not measured, where the record says it."""
        found = self.metrics.get(name)
        return found.reason if found is not None else None

    @property
    def failure_kind(self) -> str | None:
        return self.failure.kind if self.failure is not None else None

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The names of the checks that failed: such a run is shown, and never recommended."""
        return tuple(check.name for check in self.checks if check.level == "fail")

    @property
    def rate_fails(self) -> tuple[str, ...]:
        """The failed checks that the rate rests on: a missed quality or a wrong energy leaves the rate as it is."""
        return tuple(name for name in self.failed_checks if name != "quality" and not name.startswith("energy"))

    @property
    def worst_level(self) -> Level:
        """What the headline carries: the worst level of any check."""
        return max((check.level for check in self.checks), key=LEVELS.index, default="unknown")

    @property
    def window_s(self) -> float | None:
        """Seconds that the rate and its interval come from: those that all copies share, where there are several."""
        of_copies = (self.parallel or {}).get("window_s")
        own = self.steady.window_s if self.steady is not None else None
        for seconds in (of_copies, own):
            if isinstance(seconds, (int, float)) and 0 < seconds < LARGEST:
                return float(seconds)
        return None


RECORD_VERSION = 3
RECORD_SCHEMA = f"prony.record/{RECORD_VERSION}"
PLAUSIBLE = "plausible"  # the check that fails for a record that cannot be true
MAY_BE_NEGATIVE = ("loss_first", "loss_last", "quality")  # metrics; no other may
# What Python raises at a value of another kind, or one out of bounds.
OF_ANOTHER_KIND = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
CLOCK = timedelta(minutes=5)  # by which a clock may be set back during a run


class MalformedRecord(RequestError):
    """A record with the right types at the top, and wrong ones further in."""


# An upgrade takes the document of version N to version N + 1; version 1 is the first.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda old: add_interval_floor(add_provenance_parts(old)),
    2: name_kernels,
}


def new_record(plan: Plan, *, status: str, started: str, ended: str) -> dict[str, Any]:
    """A record with every field, none of them filled beyond what the plan says."""
    trial: dict[str, Any] = {**plan.trial.to_json(), "effective": {}, "effective_hash": None}
    if plan.file is not None:
        trial["file"] = {name: plan.file.get(name) for name in ("path", "sha256")}
    study = {} if plan.study is None else {"study": plan.study}
    return {
        "schema": RECORD_SCHEMA,
        "id": plan.run_id,
        "trial": trial,
        **study,
        "repeat": plan.repeat,
        "status": status,
        "failure": None,
        "started": started,
        "ended": ended,
        "stop": {
            "tolerance": plan.stop.tolerance,
            "min_time_s": plan.stop.min_time_s,
            "max_time_s": plan.stop.max_time_s,
            "warm_time_s": plan.stop.warm_time_s,
            "reason": None,
        },
        "unit": None,
        "metrics": {},
        "phases": {},
        "steady": None,
        "checks": [],
        "work": {},
        "energy": None,
        "fingerprint": {"machine": None, "software": None, "parts": {}},
        "facts": {},
    }


def upgrade(document: Any) -> dict[str, Any]:
    """A record of any older version as one of this version; a newer one is refused."""
    version = check_schema(document, "prony.record", RECORD_VERSION)
    while version < RECORD_VERSION:
        if version not in UPGRADES:
            raise RequestError(f"no upgrade from prony.record/{version} is known")
        document = UPGRADES[version](document)
        version += 1
        document["schema"] = f"prony.record/{version}"
    return dict(document)


def parse_record(document: Any) -> Record:
    """The record, upgraded and typed, or a RequestError that names what is wrong with it and where."""
    return _parsed(upgrade(document))


def accept_document(document: Any) -> tuple[dict[str, Any], Record]:
    """The document, upgraded to this version, and the record that it is; or a RequestError that says what is wrong.

    What cannot be is marked by a failed check, which everything that shows or ranks a run looks at.
    """
    document = upgrade(document)
    record = _parsed(document)
    doubts = implausible(record)
    if doubts and all(check.name != PLAUSIBLE for check in record.checks):
        message = "the record cannot be true: " + "; ".join(doubts)
        check = {"name": PLAUSIBLE, "level": "fail", "message": message}
        document["checks"] = [*document["checks"], check]
        record = replace(record, checks=(*record.checks, Check(PLAUSIBLE, "fail", message)))
    return document, record


def validate_record(document: Any) -> dict[str, Any]:
    """The record as a document of this version, accepted."""
    return accept_document(document)[0]


def accept_record(document: Any) -> Record:
    """The record, upgraded, typed and accepted."""
    return accept_document(document)[1]


def implausible(record: Record) -> list[str]:
    """Why a record cannot be true, one phrase per reason."""
    found = []
    for name, metric in record.metrics.items():
        if metric.value is not None and metric.value < 0 and name in METRICS and name not in MAY_BE_NEGATIVE:
            found.append(f"{name} is negative")
        if metric.low is not None and metric.high is not None and metric.low > metric.high:
            found.append(f"the interval of {name} ends before it begins")
    found += [f"phase {name} is negative" for name, phase in record.phases.items() if (phase.seconds or 0) < 0]
    steady, work = record.steady, record.work
    if steady is not None:
        lengths = (steady.step_time_s, steady.step_time_low_s, steady.window_s, steady.steps, steady.cut_steps)
        if any(length is not None and length < 0 for length in lengths):
            found.append("the steady window has a negative length")
        low, high = steady.step_time_low_s, steady.step_time_high_s
        if low is not None and high is not None and low > high:
            found.append("the interval of the step time ends before it begins")
    if any(amount is not None and amount < 0 for amount in (work.samples, work.units, work.steps, work.devices)):
        found.append("the work is negative")
    started, ended = _moment(record.started), _moment(record.ended)
    if started and ended and ended < started - CLOCK:
        found.append("it ended before it started")
    found += [
        f"{name} is no time" for name in ("started", "ended") if (own := getattr(record, name)) and not _moment(own)
    ]
    return found


def is_possible_rate(value: float, low: float | None, high: float | None) -> bool:
    """Whether a run can give this rate with this interval; of the others `implausible` says what is wrong."""
    return value >= 0.0 and (low is None or high is None or low <= high)


def _moment(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@contextlib.contextmanager
def using(*names: str) -> Iterator[None]:
    """While figures are made from records, by id: parts that are of another kind than Prony writes end as a sentence.

    The typed record does not reach into every part, and its user may have edited it, or got it from anyone.
    """
    try:
        yield
    except RequestError:  # a ValueError, perhaps, and a sentence already
        raise
    except OF_ANOTHER_KIND as error:
        shown = f"{', '.join(names[:3])}{' and others' if names[3:] else ''}"
        raise MalformedRecord(
            f"a part of the record of {shown} is not what Prony writes ({type(error).__name__}: {str(error)[:200]}); "
            "verify it to see whether it was changed after the run"
        ) from error


def _parsed(document: dict[str, Any]) -> Record:
    return _typed(Record, document)


def _typed(kind: type[Part], document: Any, *place: str) -> Part:
    """The part of a record in this place, typed, or a RequestError that names what is wrong with it and where."""
    try:
        return decode(kind, document)
    except Malformed as error:
        for name in reversed(place):
            error = error.inside(name)
        if isinstance(error, Absent):
            raise RequestError(f"the record has no {'.'.join(error.path)!r}") from None
        raise RequestError(f"the record's {error}" if error.path else f"the record {error}") from None


def load_record(folder: Path) -> Record | None:
    """The record of a run folder, typed; None while there is none."""
    document = files.read_json(folder / files.RECORD)
    return None if document is None else accept_record(document)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run folder; None while there is none."""
    document = files.read_json(folder / files.RECORD)
    return None if document is None else validate_record(document)
