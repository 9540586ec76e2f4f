"""One run as the index knows it, and how it follows from its record."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prony_node.contract.record import worst_level


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


def run_of_record(folder: Path, record: dict[str, Any]) -> Run:
    """The row of a valid record."""
    trial, failure = record["trial"], record.get("failure") or {}
    rate, quality, time_to = (
        record["metrics"].get(name) or {} for name in ("throughput", "quality", "time_to_quality")
    )
    devices = record["facts"].get("devices") or []
    return Run(
        folder=folder,
        id=str(record["id"]),
        workload=str(trial["workload"]),
        trial_hash=str(trial["hash"]),
        effective_hash=trial.get("effective_hash"),
        repeat=int(record.get("repeat") or 0),
        status=str(record["status"]),
        failure_kind=failure.get("kind"),
        failure_message=failure.get("message"),
        started=str(record.get("started") or ""),
        ended=str(record.get("ended") or ""),
        machine=record["fingerprint"].get("machine"),
        software=record["fingerprint"].get("software"),
        device=devices[0].get("name") if devices else None,
        unit=record.get("unit"),
        rate=rate.get("value"),
        rate_low=rate.get("low"),
        rate_high=rate.get("high"),
        score=str(quality["unit"]) if quality.get("value") is not None else None,
        quality=quality.get("value"),
        time_to_quality_s=time_to.get("value"),
        worst=worst_level(record),
        settings=dict(trial.get("settings") or {}),
        effective=dict(trial.get("effective") or {}),
    )


def to_columns(run: Run) -> dict[str, Any]:
    """The run as values of the table; its folder by name, so that a root can be moved."""
    columns = asdict(run) | {"folder": run.folder.name}
    columns["settings"] = json.dumps(run.settings)
    columns["effective"] = json.dumps(run.effective)
    return columns


def from_columns(root: Path, columns: dict[str, Any]) -> Run:
    values = dict(columns)
    values["folder"] = root / values["folder"]
    values["settings"] = json.loads(values["settings"])
    values["effective"] = json.loads(values["effective"])
    return Run(**values)
