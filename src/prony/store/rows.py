"""A run as the index knows it: its row, and reading the rows of many run folders."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import is_alive
from prony_node.contract.record import Check, Record, accept_record, load_record, read_record
from prony_node.contract.run_folder import UNVERIFIED, has_manifest, manifest_mark, marked
from prony_node.contract.safe_files import NotPlain, read_in_run, stat_in_run
from prony_node.contract.settings import Value
from prony_node.contract.typed import JsonObject

ROW_VERSION = 5  # rows of an older one are read anew from their folders
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
ColumnValue = str | int | float | None
NO_NUMBER = "holds a number that is none (NaN or infinity)"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)


@dataclass(frozen=True)
class RunSummary:
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
    settings: dict[str, Value]  # as requested
    effective: dict[str, Value]
    metrics: dict[str, float | None] = field(
        compare=False
    )  # those without a column, and the length of the steady window

    @property
    def window_s(self) -> float | None:
        """What the rate and its interval were measured in."""
        return _number(self.metrics.get("window_s"))

    @property
    def mark(self) -> str:
        """What verifying it found, or its manifest alone where nothing is noted."""
        return self.verified or manifest_mark(self.folder)

    def read_record(self) -> Record | None:
        """Its record, with a failed check where it does not verify; None where it is gone."""
        record = load_record(self.folder)
        if record is None:
            return None
        said = marked({"status": record.status, "checks": []}, self.mark, self.folder)["checks"]
        return replace(record, checks=(*record.checks, *(Check(**check) for check in said))) if said else record

    def read_document(self) -> JsonObject | None:
        """The same as the document that it is, for a program."""
        document = read_record(self.folder)
        return None if document is None else marked(document, self.mark, self.folder)

    def to_json(self) -> JsonObject:
        known = asdict(self) | {"folder": str(self.folder), "window_s": self.window_s}
        del known["metrics"]
        return known


@dataclass(frozen=True)
class IndexRow:
    """One run as the values of its two tables, by their columns."""

    run: dict[str, ColumnValue]
    detail: dict[str, ColumnValue]

    @property
    def id(self) -> str:
        return str(self.run["id"])

    @property
    def folder(self) -> str:
        return str(self.run["folder"])

    @property
    def stamp(self) -> ColumnValue:
        """Of its record's file when it was read (`record_stamp`)."""
        return self.run["stamp"]

    def marked_as(self, verified: str, **more: ColumnValue) -> IndexRow:
        """The row with what verifying the run found, and with other values of columns."""
        return replace(self, run={**self.run, "verified": verified, **more})


def row_of_record(folder: str, record: Record, place: str | None = None) -> IndexRow:
    """The row of a valid record in the folder of this name; refused where a database could not hold it."""
    if storable(folder) != folder:
        raise RequestError("the name of its folder is not UTF-8: rename it")
    trial, failure, facts = record.trial, record.failure, record.facts
    metrics = {name: metric.value for name, metric in record.metrics.items()}
    rate, quality = record.metrics.get("throughput"), record.metric("quality")
    effective = trial.effective or {}
    run: dict[str, ColumnValue] = {
        "folder": folder,
        "id": _needed(record.id, "id"),
        "workload": _needed(trial.workload, "trial.workload"),
        "trial_hash": _needed(trial.hash, "trial.hash"),
        "effective_hash": _text(trial.effective_hash),
        "repeat": _count(record.repeat, LARGEST_REPEAT) or 0,
        "status": _needed(record.status, "status"),
        "failure_kind": failure.kind if failure is not None else None,
        "started": _text(record.started or ""),
        "ended": _text(record.ended or ""),
        "machine": _text(record.fingerprint.machine),
        "software": _text(record.fingerprint.software),
        "node_source": _text(facts.software.prony_node_source),
        "verified": None,
        "device": _text(record.device.name),
        "devices": _count(record.work.devices) or _count(effective.get("devices")),
        "host": _text(facts.host.hostname),
        "place": place,
        "unit": _text(record.unit),
        "rate_low": _number(rate.low) if rate is not None else None,
        "rate_high": _number(rate.high) if rate is not None else None,
        "score": _text(quality.unit) if quality is not None else None,
        "worst": record.worst_level,
        "row_version": ROW_VERSION,
        "stamp": None,
    }
    known = effective or trial.settings  # a run that failed early has what was asked for
    for name in TEXT_SETTINGS:
        run[name] = _text(known.get(name))
    for name in NUMBER_SETTINGS:
        run[name] = _count(known.get(name))
    for name, column in NAMED_METRICS.items():
        run[column] = _number(metrics.pop(name, None))
    for name in METRIC_COLUMNS:
        run[name] = _number(metrics.pop(name, None))
    detail: dict[str, ColumnValue] = {
        "folder": folder,
        "failure_message": _text(failure.message) if failure is not None else None,
        "settings": _json(trial.settings),
        "effective": _json(effective),
        "metrics": _json(metrics | {"window_s": record.window_s}),  # those that have no column
    }
    return IndexRow(run, detail)


def run_of_columns(folder: Path, columns: Mapping[str, Any]) -> RunSummary:
    """The run of a row joined with its detail."""
    names = (name for name in RunSummary.__dataclass_fields__ if name not in ("folder", *IN_JSON))
    return RunSummary(
        folder=folder,
        settings=_document(columns["settings"]),
        effective=_document(columns["effective"]),
        metrics=_document(columns["metrics"]),
        **{name: columns[name] for name in names},
    )


def _document(text: Any) -> Any:
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


def _json(document: Mapping[str, Any]) -> str:
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


loads: Callable[[bytes], Any] = json.loads
try:
    import orjson
except ImportError:
    pass
else:
    loads = orjson.loads  # most of the time of reading a record is its JSON; this takes less than half

SEVERAL_FROM = 4000  # folders, from which on a second process is worth its start
CHUNK = 500
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)  # to look into, no more
MANIFEST_WAIT_S = 60.0  # after the record, within which a supervisor writes its manifest
# What a record that is not one can end in: any of its values may be of another kind, or nested without end.
UNREADABLE = (
    RequestError, OSError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    """A folder that is not in the index, and why."""

    folder: Path
    reason: str


@dataclass
class Scan:
    """What lies in some folders."""

    found: list[IndexRow] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # broken, or of a newer Prony
    unfinished: list[Path] = field(default_factory=list)  # a plan and no record: running, or lost


@dataclass(frozen=True)
class Refreshed:
    """What bringing the index up to date did."""

    ingested: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)  # broken, or of a newer Prony
    unfinished: list[Path] = field(default_factory=list)  # a plan and no record: running, or lost
    unwritten: str | None = None  # why the index beside the folders could not be written


def folders_of(root: Path) -> list[Path]:
    """The folders under a root that may be those of runs, by name."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [root / name for name in sorted(names)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)  # a link may lead to runs that the group is not to see
    except OSError:  # a link to itself, or to where one may not look
        return False


def read_row(folder: Path) -> IndexRow:
    """The row of one run folder; refused when it has no record."""
    return _read_row(folder, record_stamp(folder))


def _read_row(folder: Path, stamp: int | None) -> IndexRow:
    """`stamp` is that of before the record is read: an edit in between is noticed next time."""
    record = _read_record(folder)
    if record is None:
        raise RequestError(f"{folder} has no readable record.json")
    row = row_of_record(folder.name, record)
    if not has_manifest(folder) and _is_fresh(folder):  # its manifest may be about to be written: read again next time
        return row.marked_as(UNVERIFIED, stamp=stamp, row_version=0)
    return row.marked_as(manifest_mark(folder), stamp=stamp)


def record_stamp(folder: Path | str) -> int | None:
    """A number that another content of the record's file would not have: of its size, times and inode.

    The time of its last change (ctime) is one that nobody can set back.

    None where nothing has its name, not even a link that leads nowhere, and where the folder is a link. Where the
    system does not say, as of another user's folder, the error is raised.
    """
    try:
        handle = os.open(folder, FOLDER)  # of thousands of folders at each verb: no Path, no context
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.stat(files.RECORD, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(handle)
    text = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _is_fresh(folder: Path) -> bool:
    """Whether a supervisor wrote this record just now, and has not ended yet."""
    age_s = time.time() - stat_in_run(folder / files.RECORD).st_mtime
    holder = files.read_json(folder / files.SUPERVISOR)
    return 0 <= age_s < MANIFEST_WAIT_S and isinstance(holder, dict) and is_alive(holder) is not False


def _read_record(folder: Path) -> Record | None:
    """The same as `load_record`, which has the last word on what cannot be read, and faster."""
    try:
        document = loads(files.bounded_json(read_in_run(folder / files.RECORD)))
    except NotPlain as error:
        raise RequestError(f"its record cannot be read: {error.strerror}") from error
    except (OSError, ValueError, RecursionError):
        return load_record(folder)
    return accept_record(document)


def is_readable(folder: Path) -> bool:
    """Whether a folder has a record that gives a row; one that another user keeps to themselves may be good."""
    try:
        read_row(folder)
    except PermissionError:
        return True
    except UNREADABLE:
        return False
    return True


def scan(folders: Iterable[Path]) -> Scan:
    """Read these folders here and now."""
    result = Scan()
    for folder in folders:
        try:
            stamp = record_stamp(folder)
            if stamp is not None:
                result.found.append(_read_row(folder, stamp))
            elif os.path.lexists(folder / files.PLAN) and storable(folder.name) == folder.name:
                result.unfinished.append(folder)
        except RequestError as error:
            result.skipped.append(Skipped(folder, str(error)))
        except OSError as error:  # another user's, perhaps
            result.skipped.append(Skipped(folder, f"its record cannot be read: {error.strerror}"))
        except UNREADABLE as error:
            result.skipped.append(Skipped(folder, f"its record is incomplete: {error!r}"))
    return result


def joined(parts: Iterable[Scan], least: int) -> Iterator[Scan]:
    """Parts put together until each has this many rows."""
    whole = Scan()
    for part in parts:
        whole.found += part.found
        whole.skipped += part.skipped
        whole.unfinished += part.unfinished
        if len(whole.found) >= least:
            yield whole
            whole = Scan()
    yield whole


def scan_in_parts(folders: list[Path]) -> Iterator[Scan]:
    """The same in parts, so that memory stays small; of many folders on several cores."""
    chunks = [folders[start : start + CHUNK] for start in range(0, len(folders), CHUNK)]
    workers = min(4, len(os.sched_getaffinity(0)))
    if len(folders) < SEVERAL_FROM or workers < 2:
        yield from map(scan, chunks)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # A forked child would share locks and connections; a fresh one imports this file and the contract, no more.
    # Records are trees without cycles, so it need not look for any.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        yield from pool.map(scan, chunks)
