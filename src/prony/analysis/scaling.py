"""A scaling series: what more devices gained over one, what was lost and where, and what the law behind it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prony.analysis.compare import Side, side
from prony.analysis.scaling_alarm import Alarm, find_alarm
from prony.analysis.scaling_changes import Change, changes
from prony.analysis.scaling_law import Figure, Fit, fit, over
from prony.analysis.scaling_links import Link, find_link, operation_of
from prony.analysis.scaling_losses import Losses, losses, rate_figure
from prony.analysis.scaling_record import device_batch, device_count, is_free, node_count
from prony.analysis.scaling_series import asked_of, constant_batch
from prony.analysis.settings import Record
from prony.analysis.stated import number
from prony.analysis.variation import repeats_of
from prony_node.contract.record import rate_fails

NOT_RUN = "it was not run with sync=off"
Count = tuple[int, int]  # devices of all nodes together, and nodes


@dataclass(frozen=True)
class Point:
    """One count of devices."""

    devices: int
    nodes: int
    batch: int | None  # samples per step and device
    side: Side  # the rate, and what its interval covers
    free: Side | None  # the same with sync=off
    speedup: Figure | None
    efficiency: Figure | None
    losses: Losses | None
    sent_bytes: float | None  # by one device in a step
    step_s: float | None
    operation: str | None  # the collective that shows what this exchange could reach
    link: Link | None  # what it reached on this machine, where it was run
    reason: str | None  # why there is no speedup


@dataclass(frozen=True)
class Scaling:
    """A series of one kind."""

    kind: str  # weak: the batch of each device is constant; strong: that of all together is
    workload: str
    device: str | None  # what counts as one
    batch: int | None  # that stays the same
    settings: dict[str, Any]  # as requested, of all points
    points: list[Point]
    fit: Fit | None
    changes: list[Change]  # what else differs from the run on one device
    alarms: list[Alarm]
    left_out: list[str]  # runs that failed or were interrupted, and why

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scaling(
    records: Sequence[Record],
    kind: str,
    predict: Sequence[int] = (),
    no_free: str = NOT_RUN,
    collectives: Sequence[Record] = (),
) -> Scaling:
    """The series of these records, in whatever order; `no_free` says why there is no run with sync=off.

    `collectives` are runs that show what the links can do, of any machine and count.
    """
    ordered = sorted(records, key=lambda record: (device_count(record), is_free(record), str(record["id"])))
    good = [record for record in ordered if _is_good(record)]
    base = _of(good, (1, 1))
    changed = changes(base[0], good, kind) if base else []
    points = [_point(count, base, good, ordered, no_free, collectives) for count in sorted(set(map(_count, ordered)))]
    alarms = [
        find_alarm(point.devices, point.efficiency, base, _of(good, (point.devices, point.nodes)), kind, changed)
        for point in points
        if point.efficiency is not None and point.devices > 1
    ]
    return Scaling(
        kind=kind,
        workload=ordered[0]["trial"]["workload"],
        device=_device(good),
        batch=next((constant_batch(record, kind) for record in (base or good)), None),
        settings=asked_of(ordered[-1]),
        points=points,
        fit=_fit(kind, points, predict),
        changes=changed,
        alarms=[alarm for alarm in alarms if alarm is not None],
        left_out=[_why(record) for record in ordered if not any(record is one for one in good)],
    )


def _is_good(record: Record) -> bool:
    """Whether its rate counts: one that leaves out work is fast."""
    return record["status"] == "ok" and not rate_fails(record) and side([record]).rate is not None


def _of(records: Sequence[Record], count: Count, free: bool = False) -> list[Record]:
    return [record for record in records if _count(record) == count and is_free(record) == free]


def _count(record: Record) -> Count:
    return device_count(record), node_count(record)


def _point(
    count: Count,
    base: Sequence[Record],
    good: Sequence[Record],
    every: Sequence[Record],
    no_free: str,
    collectives: Sequence[Record],
) -> Point:
    devices, nodes = count
    pool = repeats_of(good)  # where one count was repeated, it shows the variation of those that were not
    ours, free = _of(good, count), _of(good, count, free=True)
    here = (
        side(ours, pool, base)
        if ours
        else Side([str(one["id"]) for one in _of(every, count)], None, None, None, None, "none")
    )
    reason = _no_speedup(devices, here, base)
    speedup = None
    if reason is None:
        speedup = Figure(1.0, 1.0, 1.0) if devices == 1 else rate_figure(here, side(base, pool, ours))
    efficiency = None if speedup is None else over(speedup, devices)
    lost = None
    if efficiency is not None and devices > 1:
        tried = _of(every, count, free=True)
        lost = losses(
            base, ours, free, efficiency, f"the run with sync=off {_end(tried[0])}" if tried else no_free, pool
        )
    return Point(
        devices=devices,
        nodes=nodes,
        batch=next((device_batch(record) for record in ours), None),
        side=here,
        free=side(free, pool, ours) if free else None,
        speedup=speedup,
        efficiency=efficiency,
        losses=lost,
        sent_bytes=_mean_metric(ours, "communication_bytes"),
        step_s=_mean_metric(ours, "step_time"),
        operation=operation_of(ours[0]) if ours else None,
        link=find_link(ours, collectives),
        reason=reason,
    )


def _mean_metric(records: Sequence[Record], name: str) -> float | None:
    values = [number((record["metrics"].get(name) or {}).get("value")) for record in records]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _no_speedup(devices: int, here: Side, base: Sequence[Record]) -> str | None:
    """Why this count has no speedup over one device."""
    if here.rate is None:
        return f"no run on {devices} device{'s' if devices != 1 else ''} ended well"
    if not base:
        return "no run on one device ended well, and efficiency is against one device"
    unit = side(base).unit
    return None if here.unit == unit else f"it counts {here.unit}, and the run on one device {unit}"


def _fit(kind: str, points: Sequence[Point], predict: Sequence[int]) -> Fit | None:
    # Of the same number of devices on fewer and on more nodes the law takes the first.
    speedups = {point.devices: point.speedup for point in reversed(points) if point.speedup is not None}
    if 1 not in speedups or any(_above_ideal(point) for point in points):
        return None  # no law of scaling has more than 100 %, and one that cannot hold predicts nothing
    one = next(point.side for point in points if point.devices == 1)
    known = Figure(one.rate or 1.0, one.low, one.high) if one.interval != "none" else Figure(one.rate or 1.0)
    largest = max(speedups)
    return fit(kind, speedups, known, predict or (2 * largest, 4 * largest))


def _above_ideal(point: Point) -> bool:
    """Whether more than 100 % is shown, and not only seen."""
    low = None if point.efficiency is None or point.devices == 1 else point.efficiency.low
    return low is not None and low > 1.0


def _device(records: Sequence[Record]) -> str | None:
    """What counts as one device: NVIDIA H200 (one GPU), or a process on a CPU."""
    devices = [device for record in records for device in record["facts"].get("devices") or []]
    named = next((device for device in devices if device.get("name")), None)
    if named is None:
        return None
    if named.get("kind") == "cpu":  # each of several has a share of the host's cores
        return f"a process on {named['name']}"
    return f"{named['name']} ({named['counts_as']})" if named.get("counts_as") else str(named["name"])


def _why(record: Record) -> str:
    free = " with sync=off" if is_free(record) else ""
    return f"{record['id']} ({device_count(record)} devices{free}) {_end(record)}"


def _end(record: Record) -> str:
    failure = record.get("failure") or {}
    if record["status"] == "ok":
        failed = rate_fails(record)
        return f"failed its check {', '.join(failed)}" if failed else "has no rate"
    said = str(failure.get("message") or "").partition("\n")[0]
    return f"{'was interrupted' if record['status'] == 'interrupted' else 'failed'}: {said}"
