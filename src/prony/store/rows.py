"""A run as the index knows it: its row, and how the row is made from its record."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record, window_of, worst_level
from prony_node.contract.verification import manifest_mark, marked

ROW_VERSION = 4  # rows of an older one are read anew from their folders
# Effective settings that have a column of their own; the others are in JSON beside the row.
TEXT_SETTINGS = ("preset", "mode", "data", "precision", "compile")
NUMBER_SETTINGS = ("batch_size", "workers")
# These three have columns from the first schema, under names of their own.
NAMED_METRICS = {"throughput": "rate", "quality": "quality", "time_to_quality": "time_to_quality_s"}
# Metrics with a column of their own, as of migration 0002; a newer one is found in JSON until a migration adds it.
METRIC_COLUMNS = (
    "throughput_per_device", "step_time", "latency_p50", "latency_p90", "latency_p99", "time_to_first_token",
    "cold_start", "data_wait_share", "flops_per_sample", "recomputed_flops_per_sample", "mfu", "peak_memory",
    "peak_memory_reserved", "peak_memory_host", "cpu_utilisation", "energy", "energy_per_sample", "samples_per_wh",
    "power", "power_peak", "power_idle", "node_energy", "node_power", "loss_first", "loss_last", "energy_to_quality",
)  # fmt: skip
LARGEST, LARGEST_REPEAT = 2**63, 2**31  # of a column's numbers
LONGEST_TEXT, LONGEST_JSON = 2**14, 2**18  # characters of a row: thousands of rows are in memory at once
IN_JSON = ("settings", "effective", "metrics")
NO_NUMBER = "holds a number that is none (NaN or infinity)"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)


@dataclass(frozen=True)
class Run:
    """What lists, sweeps and searches ask of a run; everything else is in its record."""

    folder: Path
    id: str
    workload: str
    trial_hash: str
    effective_hash: str | None
    repeat: int
    status: str
    failure_kind: str | None
    failure_message: str | None
    started: str
    ended: str
    machine: str | None  # fingerprints
    software: str | None
    node_source: str | None  # a hash of the node program that made it
    verified: str | None  # "yes", "manifest", "no" or "unverified"; `prony verify` says why
    device: str | None
    unit: str | None
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    score: str | None  # what a run that learned was scored by: accuracy
    quality: float | None
    time_to_quality_s: float | None
    worst: str
    settings: dict[str, Any]  # as requested
    effective: dict[str, Any]
    metrics: dict[str, Any] = field(compare=False)  # those without a column, and the length of the steady window

    @property
    def window_s(self) -> float | None:
        """What the rate and its interval were measured in."""
        return _number(self.metrics.get("window_s"))

    @property
    def mark(self) -> str:
        """What verifying it found, or its manifest alone where nothing is noted."""
        return self.verified or manifest_mark(self.folder)

    def read_record(self) -> dict[str, Any] | None:
        """Its record, with a failed check where it does not verify; None where it is gone."""
        record = read_record(self.folder)
        return None if record is None else marked(record, self.mark, self.folder)

    def to_json(self) -> dict[str, Any]:
        known = asdict(self) | {"folder": str(self.folder), "window_s": self.window_s}
        del known["metrics"]
        return known


@dataclass(frozen=True)
class Row:
    """One run as the values of its two tables."""

    run: dict[str, Any]
    detail: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.run["id"])

    @property
    def folder(self) -> str:
        return str(self.run["folder"])


def row_of_record(folder: str, record: dict[str, Any], place: str | None = None) -> Row:
    """The row of a valid record in the folder of this name; refused where a database could not hold it."""
    if storable(folder) != folder:
        raise RequestError("the name of its folder is not UTF-8: rename it")
    trial, failure, facts = record["trial"], record.get("failure") or {}, record["facts"]
    metrics = {name: metric["value"] for name, metric in record["metrics"].items()}
    rate, quality = record["metrics"].get("throughput") or {}, record["metrics"].get("quality") or {}
    devices = facts.get("devices") or []
    effective = dict(trial.get("effective") or {})
    run = {
        "folder": folder,
        "id": _needed(record["id"], "id"),
        "workload": _needed(trial["workload"], "trial.workload"),
        "trial_hash": _needed(trial.get("hash"), "trial.hash"),
        "effective_hash": _text(trial.get("effective_hash")),
        "repeat": _count(record.get("repeat"), LARGEST_REPEAT) or 0,
        "status": _needed(record["status"], "status"),
        "failure_kind": _text(failure.get("kind")),
        "started": _text(record.get("started") or ""),
        "ended": _text(record.get("ended") or ""),
        "machine": _text(record["fingerprint"].get("machine")),
        "software": _text(record["fingerprint"].get("software")),
        "node_source": _text((facts.get("software") or {}).get("prony_node_source")),
        "verified": None,
        "device": _text(devices[0].get("name")) if devices else None,
        "devices": _count(record["work"].get("devices")) or _count(effective.get("devices")),
        "host": _text((facts.get("host") or {}).get("hostname")),
        "place": place,
        "unit": _text(record.get("unit")),
        "rate_low": _number(rate.get("low")),
        "rate_high": _number(rate.get("high")),
        "score": _text(quality["unit"]) if quality.get("value") is not None else None,
        "worst": worst_level(record),
        "row_version": ROW_VERSION,
        "stamp": None,
    }
    known = effective or trial.get("settings") or {}  # a run that failed early has what was asked for
    for name in TEXT_SETTINGS:
        run[name] = _text(known.get(name))
    for name in NUMBER_SETTINGS:
        run[name] = _count(known.get(name))
    for name, column in NAMED_METRICS.items():
        run[column] = _number(metrics.pop(name, None))
    for name in METRIC_COLUMNS:
        run[name] = _number(metrics.pop(name, None))
    detail = {
        "folder": folder,
        "failure_message": _text(failure.get("message")),
        "settings": _json(trial.get("settings") or {}),
        "effective": _json(effective),
        "metrics": _json(metrics | {"window_s": window_of(record)}),  # those that have no column
    }
    return Row(run, detail)


def run_of_columns(folder: Path, columns: dict[str, Any]) -> Run:
    """The run of a row joined with its detail."""
    names = (name for name in Run.__dataclass_fields__ if name not in ("folder", *IN_JSON))
    return Run(
        folder=folder,
        settings=_document(columns["settings"]),
        effective=_document(columns["effective"]),
        metrics=_document(columns["metrics"]),
        **{name: columns[name] for name in names},
    )


def _document(text: Any) -> dict[str, Any]:
    """A part of a row that is kept as JSON; another user may have made the index, or somebody edited it."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RequestError(
            "the index holds a row that Prony did not write; `prony store rebuild` makes it anew from the run folders"
        )
    return document


def storable(text: str) -> str:
    """The text as any database takes it: no NUL, no half of a character."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def _text(value: Any) -> str | None:
    return None if value is None else storable((value if isinstance(value, str) else str(value))[:LONGEST_TEXT])


def _needed(value: Any, place: str) -> str:
    """The text of a column that is never empty: one row without it, and no row of its transaction is written."""
    text = _text(value)
    if text is None:
        raise RequestError(f"the record has no {place!r}")
    return text


def _count(value: Any, largest: int = LARGEST) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and -largest <= value < largest else None


def _number(value: Any) -> float | None:
    """A finite number: a database that takes NaN sorts it above all others."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def _json(document: dict[str, Any]) -> str:
    """JSON that any database can look into: one bad value would make every question about that name fail."""
    for name, value in document.items():
        if type(value) is int and abs(value) > sys.float_info.max:
            raise RequestError(f"the record's {storable(name)!r} is too large a number")
    try:
        text = storable(_ENCODER.encode(document))
    except ValueError:
        raise RequestError(f"the record {NO_NUMBER}") from None
    if len(text) > LONGEST_JSON:
        raise RequestError(f"the record's settings or metrics have more than {LONGEST_JSON:,} characters")
    return text.replace("\\u0000", "\\ufffd")
