"""Records of scaling series, made up from a law: what a controller's test needs of runs on several devices."""

from __future__ import annotations

from typing import Any

from prony_node.contract.record import validate_record
from prony_node.contract.trial import settings_hash

ONE_DEVICE_RATE = 1000.0
NOTE = "made by tests/unit/prony/scaling_records.py for tests; not a measurement"
EFFECTIVE = {
    "mode": "train",
    "data": "device",
    "precision": "bf16",
    "grad_accumulation": 1,
    "seed": 0,
    "device": "cuda",
}
CHECKS = ("steady", "throttled", "clocks", "foreign-processes")


def device_facts(index: int, **more: Any) -> dict[str, Any]:
    return {
        "device": f"cuda:{index}", "index": index, "name": "NVIDIA H200", "uuid": f"GPU-{index}",
        "counts_as": "one GPU", "memory_total_bytes": 150_000_000_000, "l2_cache_bytes": 60_000_000, **more,
    }  # fmt: skip


def metric(value: float | None, unit: str, half: float | None = None) -> dict[str, Any]:
    if value is None:
        return {"value": None, "reason": "made up without it"}
    low, high = (None, None) if half is None else (value / (1.0 + half), value * (1.0 + half))
    return {"value": value, "low": low, "high": high, "unit": unit, "scope": "all devices", "source": "made up"}


def scaled_record(
    devices: int,
    rate: float,
    *,
    kind: str = "weak",
    sync: bool = True,
    repeat: int = 0,
    batch: int = 64,
    half: float | None = 0.005,
    wait: float | None = None,
    paces: list[float] | None = None,
    steps_s: list[float] | None = None,
    summed: bool = False,
    failed: str | None = None,
    settings: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    checks: dict[str, tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """The record of a run on so many devices with this rate, `batch` being what stays the same in its kind."""
    each = batch if kind == "weak" or devices == 1 else batch // devices
    asked: dict[str, Any] = {"devices": devices}
    asked |= {"batch_size": batch} if kind == "weak" or devices == 1 else {"global_batch": batch}
    asked |= {} if sync else {"sync": False}
    effective = EFFECTIVE | asked | {"batch_size": each} | (settings or {})
    effective |= {"global_batch": each * devices, "parallel": "ddp", "sync": sync} if devices > 1 else {}
    effective |= {"data": "host"} if wait is not None else {}
    found = {"throughput": metric(rate, "images/s", half), "data_wait_share": metric(wait, "1")}
    levels = {name: ("pass", "nothing to say") for name in CHECKS} | (checks or {})
    record: dict[str, Any] = {
        "schema": "prony.record/1",
        "synthetic": NOTE,
        "id": f"resnet50-{kind}-{devices}-{'on' if sync else 'off'}-{repeat}",
        "trial": {"hash": settings_hash("resnet50", asked), "workload": "resnet50", "settings": asked,
                  "effective": effective, "effective_hash": settings_hash("resnet50", effective)},
        "repeat": repeat,
        "status": "ok",
        "failure": None,
        "started": f"2026-11-15T12:{devices:02}:{repeat:02}+00:00",
        "ended": f"2026-11-15T12:{devices:02}:{repeat + 1:02}+00:00",
        "stop": {"reason": "tolerance"},
        "unit": "images",
        "metrics": found | (metrics or {}),
        "phases": {"steady": {"seconds": 10.0, "steps": 100}},
        "steady": None,
        "checks": [{"name": name, "level": level, "message": text} for name, (level, text) in levels.items()],
        "work": {"samples": 100, "steps": 100, "devices": devices},
        "fingerprint": {"machine": "m", "software": "s"},
        "facts": {"host": {"hostname": "node017", "cpu": {"caches": {"L3": "300M"}}}, "software": {"torch": "2.11.0"},
                  "container": {}, "environment": {}, "devices": [device_facts(number) for number in range(devices)]},
    }  # fmt: skip
    if paces:
        both = enumerate(zip(paces, steps_s or paces, strict=True))
        ranks = [{"rank": rank, "pace": {"seconds": pace_s}, "step_s": step_s} for rank, (pace_s, step_s) in both]
        record["parallel"] = {"form": "ddp", "ranks": ranks, **({"window_s": 10.0} if summed else {})}
    if failed:
        record |= {"status": "failed", "failure": {"kind": "out-of-memory", "message": failed}, "metrics": {}}
        record["work"] = {}
    return validate_record(record)


def series(speedups: dict[int, float], kind: str = "weak", half: float | None = 0.005) -> list[dict[str, Any]]:
    """One run at each count, with these speedups over one device."""
    return [scaled_record(count, ONE_DEVICE_RATE * by, kind=kind, half=half) for count, by in speedups.items()]
