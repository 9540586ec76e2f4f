"""The share of a ceiling that was measured on the same device: a utilisation whose denominator is a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from prony.analysis.compare import rate_ratio, side
from prony.analysis.settings import Record, settings_of
from prony.analysis.variation import Repeat
from prony.catalog import COMPUTES_AS
from prony_node.contract.errors import RequestError
from prony_node.contract.record import PLAUSIBLE, is_possible_rate

UNIT = "FLOP/s"
HOURS_APART = 24.0  # a ceiling is measured today: clocks, drivers and neighbours change


@dataclass(frozen=True)
class Share:
    """FLOP/s of a run over those of a ceiling; both of one device."""

    run: str
    ceiling_run: str
    ceiling: str  # the workload: gemm
    device: str
    precision: str
    achieved: float
    reached: float  # by the ceiling
    share: float
    low: float | None  # 95 %, with the variation between runs
    high: float | None
    unit: str = UNIT
    doubts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "prony.share/1", **asdict(self)}


def share_of_ceiling(record: Record, ceiling: Record, pool: Sequence[Repeat] = ()) -> Share:
    """What share of a ceiling a run reached; refused where the two do not belong together.

    Both are single runs: they take the variation between runs from `pool`, the good runs of the store.
    """
    unit = (ceiling["metrics"].get("throughput_per_device") or {}).get("unit")
    if unit is not None and unit != UNIT:
        raise RequestError(f"{ceiling['id']} counts {unit}: a run's FLOP/s have a ceiling in gemm, conv or attention")
    flops = _flops_per_unit(record)
    rate, reached = _rate(record), _rate(ceiling)
    device = _same("device", _device(record), _device(ceiling), record, ceiling)
    precision = _same("precision", _precision(record), _precision(ceiling), record, ceiling)
    share = flops * float(rate["value"]) / float(reached["value"])
    found = rate_ratio(side([record], pool), side([ceiling], pool))
    low, high = (share * found.low / found.ratio, share * found.high / found.ratio) if found else (None, None)
    return Share(
        run=record["id"],
        ceiling_run=ceiling["id"],
        ceiling=ceiling["trial"]["workload"],
        device=device,
        precision=precision,
        achieved=flops * float(rate["value"]),
        reached=float(reached["value"]),
        share=share,
        low=low,
        high=high,
        doubts=_doubts(record, ceiling, share),
    )


def _rate(record: Record) -> dict[str, Any]:
    rate: dict[str, Any] = record["metrics"].get("throughput_per_device") or {}
    if not rate.get("value"):
        failure = (record.get("failure") or {}).get("message")
        raise RequestError(f"{record['id']} has no rate: {failure or rate.get('reason') or 'it was not measured'}")
    if not is_possible_rate(rate["value"], rate.get("low"), rate.get("high")):
        raise RequestError(f"the rate of {record['id']} cannot be true (check {PLAUSIBLE})")
    return rate


def _flops_per_unit(record: Record) -> float:
    """FLOP of one image or token: counted a sample, and a sample has several tokens."""
    counted = record["metrics"].get("flops_per_sample") or {}
    work = record["work"]
    if not counted.get("value") or not work.get("units") or not work.get("samples"):
        raise RequestError(f"{record['id']} has no count of FLOP: {counted.get('reason') or 'it was not measured'}")
    return float(counted["value"]) * float(work["samples"]) / float(work["units"])


def _device(record: Record) -> str | None:
    devices = record["facts"].get("devices") or [{}]
    return devices[0].get("name")


def _precision(record: Record) -> str | None:
    precision = settings_of(record).get("precision")
    return COMPUTES_AS.get(str(precision), str(precision)) if precision else None


def _same(what: str, ours: str | None, theirs: str | None, record: Record, ceiling: Record) -> str:
    if ours is None or theirs is None:
        raise RequestError(f"the {what} of {record['id'] if ours is None else ceiling['id']} is not in its record")
    if ours != theirs:
        raise RequestError(
            f"{record['id']} and {ceiling['id']} differ in {what}: {ours} and {theirs}; measure the ceiling there too"
        )
    return ours


def _doubts(record: Record, ceiling: Record, share: float) -> list[str]:
    found = []
    if share > 1.0:
        found.append("more than the ceiling: it was not one for this run, or a count is wrong")
    if _identity(record) != _identity(ceiling):
        found.append("the ceiling was measured on another device of this kind")
    apart = _hours_apart(record, ceiling)
    if apart is None or apart > HOURS_APART:
        when = "at an unknown time" if apart is None else f"{apart:.0f} hours apart"
        found.append(f"the ceiling was measured {when}")
    found += [
        f"{one['id']}: {check['name']}: {check.get('message', '')}"
        for one in (record, ceiling)
        for check in one["checks"]
        if check["level"] == "fail"
    ]
    return found


def _identity(record: Record) -> tuple[Any, Any]:
    """Which device of its kind, and of which machine: a CPU has no number of its own."""
    return record["facts"]["devices"][0].get("uuid"), record["fingerprint"].get("machine")


def _hours_apart(record: Record, ceiling: Record) -> float | None:
    try:
        ours, theirs = (datetime.fromisoformat(one["started"]) for one in (record, ceiling))
        return abs((ours - theirs).total_seconds()) / 3600.0
    except (KeyError, TypeError, ValueError):
        return None
