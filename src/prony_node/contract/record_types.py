"""The record, typed: what each part is called, of which kind it is, and which of them belong together."""

# ruff: noqa: RUF009  optional() and empty() make dataclass fields
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from prony_node.contract.typed import empty, optional

Status = Literal["ok", "failed", "interrupted"]
Level = Literal["pass", "unknown", "warn", "fail"]  # from best to worst
FailureKind = Literal[
    "out-of-memory", "exception", "killed", "hung", "lost", "missing-library", "missing-device",
    "time-limit", "node-failure", "rendezvous", "request", "interrupted",
]  # fmt: skip
LEVELS: tuple[str, ...] = get_args(Level)
FAILURES: tuple[str, ...] = get_args(FailureKind)
OUT_OF_MEMORY: FailureKind = "out-of-memory"

JsonObject = Mapping[str, Any]
Plain = str | int | float | bool | None  # the value of a setting


@dataclass(frozen=True)
class RecordedTrial:
    """The workload with its settings, as requested and as they took effect on the machine."""

    workload: str
    settings: Mapping[str, Plain]
    hash: str | None = None
    effective: Mapping[str, Plain] | None = None
    effective_hash: str | None = None
    file: JsonObject | None = optional()  # a user's own model file: path and sha256
    more: JsonObject = empty()


@dataclass(frozen=True)
class Failure:
    """Why a run did not end well."""

    kind: FailureKind
    message: str = ""
    more: JsonObject = empty()


@dataclass(frozen=True)
class Stopped:
    """The stop rule that was asked for, and why the measurement ended."""

    tolerance: float | None = None
    min_time_s: float | None = None
    max_time_s: float | None = None
    reason: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class Metric:
    """A figure with its interval, unit, scope and source; or null with the reason why it was not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str | None = optional()
    scope: str | None = optional()
    source: str | None = optional()
    interval: str | None = optional()
    reason: str | None = optional()
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


@dataclass(frozen=True)
class Phase:
    """A part of the run: how long it took, and its steps."""

    seconds: float | None = None
    steps: float | None = None
    compile_cache: JsonObject | None = optional()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Steady:
    """The steady window and the time per step in it, with its interval."""

    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    relative_half_width: float | None = None
    confidence: float | None = None
    steps: int | None = None
    blocks: int | None = None
    blocks_seen: int | None = optional()  # of the step series: those that the estimate was made from
    independent_blocks: float | None = None
    window_s: float | None = None
    cut_steps: int | None = None
    cut_s: float | None = None
    half_width_floor: float | None = optional()
    slowest_event_s: float | None = optional()
    drift: float | None = None
    drift_half_width: float | None = None
    drifting: str | None = None
    levels: int | None = None
    level_values_s: tuple[float, ...] = ()
    autocorrelation: float | None = None
    outlier_share: float | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class Check:
    """Something that was looked at, and what it says of the figures."""

    name: str
    level: Level
    message: str = ""
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

    samples: float | None = optional()
    units: float | None = optional()
    steps: float | None = optional()
    devices: int | None = optional()
    window: str | None = optional()
    total_samples: float | None = optional()
    total_steps: float | None = optional()
    epoch_units: float | None = optional()
    own_synchronisations_per_step: float | None = optional()
    shapes: JsonObject | None = optional()
    more: JsonObject = empty()


@dataclass(frozen=True)
class EnergyDetail:
    """What was sampled: the parts of the machine, the node as a whole, and why readers were not there."""

    parts: tuple[JsonObject, ...] = ()
    devices: tuple[str, ...] | None = optional()
    node: JsonObject | None = optional()
    nodes: tuple[JsonObject, ...] | None = optional()
    reasons: JsonObject = empty()
    notes: tuple[str, ...] = ()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Provenance:
    """What a finished run is tied to: hashes of machine and software, and the software's versions by name."""

    machine: str | None = None
    software: str | None = None
    parts: Mapping[str, str | None] = empty()
    more: JsonObject = empty()


@dataclass(frozen=True)
class Facts:
    """What the result was obtained under."""

    host: JsonObject = empty()
    devices: tuple[JsonObject, ...] = ()
    software: JsonObject = empty()
    container: JsonObject = empty()
    environment: JsonObject = empty()
    source: JsonObject = empty()  # of the user's working directory
    more: JsonObject = empty()


@dataclass(frozen=True)
class Record:
    """The immutable result of a run, good or failed, with the facts it was obtained under."""

    schema: str
    id: str
    trial: RecordedTrial
    status: Status
    metrics: Mapping[str, Metric]
    phases: Mapping[str, Phase]
    checks: tuple[Check, ...]
    work: WorkDone
    fingerprint: Provenance
    facts: Facts
    failure: Failure | None = None
    repeat: int = 0
    started: str | None = None
    ended: str | None = None
    stop: Stopped | None = None
    unit: str | None = None
    steady: Steady | None = None
    energy: EnergyDetail | None = None
    study: JsonObject | None = optional()  # which study asked for it: name, part, order, seed, turn
    learning: JsonObject | None = optional()
    data: JsonObject | None = optional()
    parallel: JsonObject | None = optional()
    collective: JsonObject | None = optional()
    attention: JsonObject | None = optional()
    auto_batch: Any = optional()
    binding: Any = optional()
    more: JsonObject = empty()

    SCHEMA: ClassVar[JsonObject] = {
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"properties": {"failure": {"type": "null"}}},
        "else": {"required": ["failure"], "properties": {"failure": {"type": "object"}}},
    }

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.failure is None):
            raise ValueError("has a failure exactly when its status is not ok")
