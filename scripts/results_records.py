"""The runs under results/, read from archives as records of this version: results/records.jsonl, one line per record.

    python scripts/results_records.py [--results results]

An archive is what `prony store export` writes and `prony store import` reads. In it a folder may be named
GROUP@RUN; the group says which part of the results the run belongs to.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from prony.store.archive import unpacked
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import upgrade

Record = dict[str, Any]
ARCHIVES = "**/*.tar.gz"
LINES = "records.jsonl"
MANIFEST = "manifest.json"  # runs without one are unverified


@dataclass(frozen=True)
class Run:
    """A run of an archive or of a folder of run folders: its record, the names of its files, whether it verifies."""

    source: Path
    group: str
    record: Record
    files: frozenset[str]
    verified: bool


@dataclass(frozen=True)
class Line:
    """One run, as results/records.jsonl and the table of headline results have it. Seconds, joules and GiB."""

    archive: str
    group: str
    id: str
    status: str
    workload: str
    settings: dict[str, str | int]
    mode: str | None
    batch_size: int | None
    precision: str | None
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    unit: str | None
    energy_per_sample_j: float | None
    window_s: float | None
    warm_up_s: float | None
    cold_start_s: float | None
    compile_cache: str | None
    outside_s: float | None  # what a run takes beside its warm-up and its window
    memory_gib: float | None
    doubts: tuple[str, ...]  # checks of the record that warn or fail
    at_limit: bool  # it ended at its time limit, with something left that the stop rule asks for; no doubt by itself
    failed_checks: tuple[str, ...]
    unknown: tuple[str, ...]
    device: str | None
    device_id: str | None
    machine: str | None
    software: str | None
    date: str
    commit: str | None
    dirty: bool | None  # with changes that were not committed: `node_source` names the code, the commit does not
    node_source: str | None
    step_series: bool
    verified: bool


def read_runs(*sources: Path) -> Iterator[Run]:
    """The runs of archives and of folders of run folders; refused where one cannot be read."""
    for source in sources:
        try:
            yield from _runs_of_folder(source) if source.is_dir() else _runs_of_archive(source)
        except (OSError, tarfile.TarError, ValueError, EOFError) as error:
            raise RequestError(f"{source} cannot be read: {error}") from error


def _runs_of_archive(path: Path) -> Iterator[Run]:
    records: dict[str, Record] = {}
    names: dict[str, set[str]] = {}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            folder, _, name = member.name.partition("/")
            names.setdefault(folder, set()).add(name)
            content = tar.extractfile(member) if name == files.RECORD else None
            if content is not None:
                records[folder] = upgrade(json.load(content))
    verified = _verified_in(path) if any(MANIFEST in found for found in names.values()) else set()
    for folder, record in records.items():
        group = folder.partition("@")[0] if "@" in folder else ""
        yield Run(path, group, record, frozenset(names[folder]), folder in verified)


def _runs_of_folder(root: Path) -> Iterator[Run]:
    for path in sorted(root.glob(f"[!.]*/{files.RECORD}")):
        names = frozenset(file.relative_to(path.parent).as_posix() for file in path.parent.rglob("*"))
        verified = MANIFEST in names and is_verified(path.parent)
        yield Run(root, "", upgrade(json.loads(path.read_text(encoding="utf-8"))), names, verified)


def _verified_in(archive: Path) -> set[str]:
    """The folders of an archive whose records verify, unpacked for as long as that takes."""
    with (
        tempfile.TemporaryDirectory(prefix="prony-verify-") as place,
        archive.open("rb") as file,
        unpacked(file, Path(place), str(archive)) as found,
    ):
        return {folder.name for folder in found.folders if is_verified(folder)}


def is_verified(folder: Path) -> bool:
    """Whether the record agrees with the manifest and with what the files give when computed again."""
    from prony_node.run.verify import verify_folder

    return bool(verify_folder(folder).outcome == "verified")


def line_of(run: Run) -> Line:
    record = run.record
    trial, phases, checks = record["trial"], record["phases"], record["checks"]
    effective = trial.get("effective") or {}
    devices = record["facts"].get("devices") or [{}]
    fingerprint, source = record.get("fingerprint") or {}, record["facts"].get("source") or {}
    cold = phases.get("cold_start") or {}
    rate, memory = _metric(record, "throughput"), _metric(record, "peak_memory_reserved")
    window_s, warm_up_s = _seconds(phases, "steady"), _seconds(phases, "warm_up")
    return Line(
        archive=run.source.name, group=run.group, id=record["id"], status=record["status"],
        workload=trial["workload"], settings=trial["settings"], mode=effective.get("mode"),
        batch_size=effective.get("batch_size"), precision=effective.get("precision"),
        rate=_short(rate.get("value")), rate_low=_short(rate.get("low")), rate_high=_short(rate.get("high")),
        unit=rate.get("unit"), energy_per_sample_j=_short(_metric(record, "energy_per_sample").get("value")),
        window_s=window_s, warm_up_s=warm_up_s, cold_start_s=_seconds(phases, "cold_start"),
        compile_cache=(cold.get("compile_cache") or {}).get("state"),
        outside_s=_short(_whole_s(record) - (window_s or 0.0) - (warm_up_s or 0.0), 3),
        memory_gib=_short(memory["value"] / 2**30, 3) if memory.get("value") else None,
        doubts=_named(checks, "warn", "fail"), at_limit=_ended_at_limit(record), failed_checks=_named(checks, "fail"),
        unknown=_named(checks, "unknown"),
        device=devices[0].get("name"), device_id=devices[0].get("uuid"), machine=fingerprint.get("machine"),
        software=fingerprint.get("software"), date=record["started"], commit=source.get("commit"),
        dirty=source.get("dirty"), node_source=(record["facts"].get("software") or {}).get("prony_node_source"),
        step_series=files.STEPS in run.files, verified=run.verified,
    )  # fmt: skip


def _metric(record: Record, name: str) -> dict[str, Any]:
    found = record["metrics"].get(name) or {}
    return found if found.get("value") is not None else {}


def _seconds(phases: dict[str, Any], name: str) -> float | None:
    return _short((phases.get(name) or {}).get("seconds"), 4)


def _whole_s(record: Record) -> float:
    began, ended = (datetime.fromisoformat(record[name]) for name in ("started", "ended"))
    return (ended - began).total_seconds()


def _named(checks: Iterable[dict[str, str]], *levels: str) -> tuple[str, ...]:
    return tuple(check["name"] for check in checks if check["level"] in levels)


def _short(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def lines_of(results: Path) -> list[Line]:
    """Every run under a folder of results, the archives by name and the runs of each by their start."""
    found = [line_of(run) for run in read_runs(*sorted(results.glob(ARCHIVES)))]
    return sorted(found, key=lambda line: (line.archive, line.date, line.id))


def _ended_at_limit(record: Record) -> bool:
    reason = (record.get("stop") or {}).get("reason") or ""
    return bool(reason.startswith("the maximum time is over, but"))


def read_lines(path: Path) -> list[Line]:
    """What results/records.jsonl holds."""
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    tuples = ("doubts", "failed_checks", "unknown")
    return [Line(**{**document, **{name: tuple(document[name]) for name in tuples}}) for document in documents]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    try:
        lines = lines_of(options.results)
    except RequestError as error:
        print(f"results_records.py: {error}", file=sys.stderr)
        return 2
    text = "".join(json.dumps(asdict(line), separators=(",", ":")) + "\n" for line in lines)
    (options.results / LINES).write_text(text, encoding="utf-8")
    print(f"{len(lines)} records in {options.results / LINES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
