"""The analysis of a scaling series: what was gained, what was lost and where, and efficiencies above 100 %."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prony.analysis.compare import Side, rate_ratio, side
from prony.analysis.scaling_series import (
    STRONG,
    Change,
    Fit,
    Link,
    ValueInterval,
    are_copies,
    asked_of,
    changes,
    constant_batch,
    data_wait,
    device_batch,
    device_count,
    divided_by,
    find_link,
    fit,
    is_free,
    is_summed,
    node_count,
    operation_of,
    rank_paces,
    rank_step_times,
)
from prony.analysis.variation import Repeat, repeats_of
from prony_node.contract.errors import counted
from prony_node.contract.facts import CpuFacts
from prony_node.contract.record import LEVELS, Record
from prony_node.contract.settings import Value
from prony_node.stats import mean_interval

NO_PACES = "the records do not hold how long each rank takes by itself"
COMMUNICATION, INPUT, IMBALANCE, REST = "communication", "input", "imbalance", "rest"


@dataclass(frozen=True)
class LostPart:
    """One part of what was lost; None, with a reason, where it was not measured and is in the rest."""

    name: str
    share: ValueInterval | None
    reason: str | None = None


@dataclass(frozen=True)
class Losses:
    """What N devices lose against N times one: a share of the step time, and its parts, which add up to it."""

    lost: ValueInterval
    parts: list[LostPart]
    exposed: ValueInterval | None  # what sync=off saves, as measured: communication and imbalance, before the ladder
    doubts: list[str]


def losses(
    base: Sequence[Record],
    synchronised: Sequence[Record],
    free: Sequence[Record],
    efficiency: ValueInterval,
    no_free: str,
    pool: Sequence[Repeat] = (),
) -> Losses:
    """The parts, from the good runs on one device, on N, and on N with sync=off; `no_free` is why there are none.

    `pool` has the runs of the series: a single run takes the variation between runs from its repeats.
    """
    ends = (None if end is None else max(0.0, 1.0 - end) for end in (efficiency.high, efficiency.low))
    lost = ValueInterval(max(0.0, 1.0 - efficiency.value), *ends)
    ideal = 1.0 - lost.value
    if free:
        # The step time with sync=off over that with it.
        ratio = rate_figure(side(synchronised, pool, free), side(free, pool, synchronised))
        communication, imbalance, alone = _synchronisation(ratio, _apart(synchronised, free), ideal)
        exposed, doubts = _exposed(ratio), _doubts(ratio, efficiency)
    elif all(are_copies(record) for record in synchronised):
        communication, imbalance = (LostPart(name, ValueInterval(0.0)) for name in (COMMUNICATION, IMBALANCE))
        alone, exposed, doubts = 1.0, None, []
    else:
        communication, imbalance = (LostPart(name, None, no_free) for name in (COMMUNICATION, IMBALANCE))
        alone, exposed, doubts = 1.0, None, []
    doubts += _stragglers([*synchronised, *free])
    waited, reason = _further_wait(base, free or synchronised, alone, ideal)
    held = 0.0 if waited is None else _between(waited.value, 0.0, alone - ideal)
    waiting = LostPart(INPUT, None if waited is None else _around(held, waited.low, waited.high), reason)
    rest = LostPart(REST, ValueInterval(max(0.0, alone - ideal - held)))
    return Losses(lost, [communication, waiting, imbalance, rest], exposed, doubts)


def _synchronisation(
    ratio: ValueInterval, apart: tuple[float, float] | None, ideal: float
) -> tuple[LostPart, LostPart, float]:
    """Communication and imbalance, and the time that ranks take which do not wait for each other."""
    mean, slowest = apart or (1.0, 1.0)
    alone = _between(ratio.value * mean, ideal, 1.0)
    last = _between(ratio.value * slowest, alone, 1.0)
    # How far apart the ranks are is taken as known here: a mean over the runs, without an interval of its own.
    ends = (None if end is None else 1.0 - slowest * end for end in (ratio.high, ratio.low))
    communication = LostPart(COMMUNICATION, _around(1.0 - last, *ends))
    if apart is None:
        return communication, LostPart(IMBALANCE, None, NO_PACES), alone
    return communication, LostPart(IMBALANCE, ValueInterval(last - alone)), alone


def _apart(synchronised: Sequence[Record], free: Sequence[Record]) -> tuple[float, float] | None:
    """The mean of the ranks, and the slowest, each over what the rate with sync=off stands for; None where not known.

    How long a rank takes by itself is the mean over all runs of this count: of a single short look at equal ranks one
    would always seem to be the slowest. Ranks that wait for nobody add their rates, so the mean that counts is the
    harmonic one. The rate with sync=off is that of the first rank, unless it was summed; it may have been held up where
    the ranks agree when to stop, but the slowest never is, so the way leads over the slowest's own step time.
    """
    paces = [rank_paces(record) for record in (*synchronised, *free)]
    ranks = set(paces[0])
    if len(ranks) < 2 or any(set(one) != ranks for one in paces):
        return None
    means = [mean_interval([one[rank] for one in paces]).mean for rank in ranks]
    behind = max(means) * math.fsum(1.0 / pace for pace in means) / len(means)  # the slowest over the mean
    if all(is_summed(record) for record in free):
        return 1.0, behind
    windows = [rank_step_times(record) for record in free]
    if any("0" not in one for one in windows):
        return None
    slowest = mean_interval([max(one.values()) / one["0"] for one in windows]).mean
    return slowest / behind, slowest


def _exposed(ratio: ValueInterval) -> ValueInterval:
    ends = (None if end is None else 1.0 - end for end in (ratio.high, ratio.low))
    return ValueInterval(1.0 - ratio.value, *ends)


def _doubts(ratio: ValueInterval, efficiency: ValueInterval) -> list[str]:
    """What cannot be, were synchronisation all that sync=off leaves out."""
    if ratio.low is not None and ratio.low > 1.0:
        return [
            f"a step with sync=off takes {ratio.value:.3g} times as long as one with it: "
            "something other than synchronisation differs between these runs"
        ]
    if efficiency.low is not None and ratio.high is not None and efficiency.low > ratio.high:
        return [
            f"with sync=off each device does {efficiency.value / ratio.value:.1%} of what one does alone, so that "
            "synchronisation costs more than was lost: something else was gained, or the run on one device "
            "was slow".replace("%", " %", 1)
        ]
    return []


def _stragglers(many: Sequence[Record]) -> list[str]:
    """What the runs themselves say of a rank that is late."""
    found = [check for record in many for check in record.checks if check.name == "ranks"]
    said = [check.message for check in found if check.level in ("warn", "fail")]
    return [said[0] + (f" (and the like in {len(said) - 1} more)" if len(said) > 1 else "")] if said else []


def _between(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def rate_figure(ours: Side, theirs: Side) -> ValueInterval:
    """Our rate over theirs, both known, with an interval where both have one."""
    found = rate_ratio(ours, theirs)
    if found is None:
        return ValueInterval((ours.rate or 0.0) / (theirs.rate or 1.0))
    return ValueInterval(found.ratio, found.low, found.high)


def _further_wait(
    base: Sequence[Record], many: Sequence[Record], time: float, ideal: float
) -> tuple[ValueInterval | None, str | None]:
    """The wait for input on N devices beyond that on one, as a share of the step time on N."""
    ours, theirs = (_waits(records) for records in (base, many))
    if isinstance(ours, str) or isinstance(theirs, str):
        return None, ours if isinstance(ours, str) else str(theirs)
    before = mean_interval(ours).mean * ideal
    return _mean([wait * time - before for wait in theirs]), None


def _waits(records: Sequence[Record]) -> list[float] | str:
    found: list[float] = []
    for record in records:
        share, reason = data_wait(record)
        if share is None:
            return reason
        found.append(share)
    return found


def _mean(values: Sequence[float]) -> ValueInterval:
    """The mean of repeats, with Student's interval where there are several."""
    found = mean_interval(values)
    return ValueInterval(found.mean, found.low, found.high)


def _around(value: float, low: float | None, high: float | None) -> ValueInterval:
    """A share with its interval, held to what a share can be and to where the ladder put its value."""
    if low is None or high is None:
        return ValueInterval(value)
    return ValueInterval(value, min(value, _between(low, 0.0, 1.0)), max(value, _between(high, 0.0, 1.0)))


FULL = 0.9  # of the device's memory, from which on the allocator may have to give back and ask again
CLOCK_RANGE = re.compile(r"(\d+) to (\d+) MHz")  # as the check of clocks states it
SLOWER_CLOCK = 0.02
WAITS = 0.02  # of the step, more on one device than on several
SPOILS = (
    "throttled", "clocks", "memory-clock", "foreign-processes", "pcie-link", "device-errors", "host-cpus", "cpu-limit",
    "swap", "steady", "levels",
)  # checks that explain a slow run  # fmt: skip
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class SuperlinearEfficiency:
    """An efficiency above 100 %, with its probable causes, the likeliest first."""

    devices: int
    efficiency: ValueInterval
    shown: bool  # whether all of the interval lies above
    causes: list[str]


def find_alarm(
    devices: int,
    efficiency: ValueInterval,
    base: Sequence[Record],
    many: Sequence[Record],
    kind: str,
    changed: Sequence[Change],
) -> SuperlinearEfficiency | None:
    """The alarm of this count; None up to 100 %."""
    if efficiency.value <= 1.0:
        return None
    shown = efficiency.low is not None and efficiency.low > 1.0
    causes = _causes(devices, base, many, kind, changed)
    if not shown:
        told = "the interval includes 100 %" if efficiency.low is not None else "there is no interval"
        causes = [f"chance: {told}, so nothing above 100 % is shown", *causes]
    return SuperlinearEfficiency(devices, efficiency, shown, causes)


def _causes(
    devices: int, base: Sequence[Record], many: Sequence[Record], kind: str, changed: Sequence[Change]
) -> list[str]:
    found = [f"not only the devices changed: {one.sentence}" for one in changed if str(devices) in one.others]
    found += _checks(base, many)
    found += _clocks(base, many)
    found += _waiting(base, many)
    found += _memory(base, many, kind)
    if not found:
        found.append(
            "the records name none: in settings, facts, clocks, throttling, foreign processes and the wait for data "
            "nothing speaks against the run on one device; repeat it"
        )
    return found


def _checks(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    """Checks that were worse on one device than on several: it was throttled, so it is a poor measure of one."""
    found = []
    for name in SPOILS:
        ours, theirs = (max((_level(record, name) for record in records), default=0) for records in (base, many))
        if ours >= LEVELS.index("warn") and ours > theirs:
            said = next(_message(record, name) for record in base if _level(record, name) == ours)
            found.append(f"the run on one device was slowed down ({name}): {said}")
    return found


def _level(record: Record, name: str) -> int:
    levels = [check.level for check in record.checks if check.name == name]
    return max((LEVELS.index(level) for level in levels), default=0)


def _message(record: Record, name: str) -> str:
    return next(check.message for check in record.checks if check.name == name)


def _clocks(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    """A clock that was lower on one device all the time, which the check of a run by itself cannot see."""
    ours, theirs = (
        [
            (int(match.group(1)), int(match.group(2)))
            for record in records
            if _has(record, "clocks") and (match := CLOCK_RANGE.search(_message(record, "clocks")))
        ]
        for records in (base, many)
    )
    if not ours or not theirs:
        return []
    highest, lowest = max(high for _, high in ours), min(low for low, _ in theirs)
    if highest >= (1.0 - SLOWER_CLOCK) * lowest:
        return []
    return [f"the clock was lower on one device: {highest} MHz at most, against {lowest} MHz at least"]


def _has(record: Record, name: str) -> bool:
    return any(check.name == name for check in record.checks)


def _waiting(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    ours, theirs = (
        [share for record in records if (share := data_wait(record)[0]) is not None] for records in (base, many)
    )
    if not ours or not theirs or min(ours) <= max(theirs) + WAITS:
        return []
    return [
        f"the run on one device waited for input, {min(ours):.1%} of the step against {max(theirs):.1%}: "
        "more devices brought more loader workers".replace("%", " %")
    ]


def _memory(base: Sequence[Record], many: Sequence[Record], kind: str) -> list[str]:
    """A full device, or work that came to fit a cache."""
    held, room = _most(base, "peak_memory_reserved"), _memory_bytes(base)
    found = []
    if held is not None and room and held > FULL * room:
        share = f"{held / room:.0%}".replace("%", " %")
        found.append(f"the run on one device was short of memory: {share} of the device's was in use")
    cache = _cache_bytes(base)
    ours, theirs = _most(base, "peak_memory"), _most(many, "peak_memory")
    if cache and ours and theirs and theirs <= cache < ours:
        found.append(f"a cache: what a device works on fits its {cache / 2**20:.0f} MiB now, and did not on one device")
    elif kind == STRONG and not found:
        found.append(
            "a cache: in strong scaling each device works on less, and more of that stays close; "
            "the records do not show whether it did"
        )
    return found


def _most(records: Sequence[Record], name: str) -> float | None:
    values = [record.value(name) for record in records]
    return max((value for value in values if value is not None), default=None)


def _memory_bytes(records: Sequence[Record]) -> float | None:
    stated = (device.memory_total_bytes for record in records for device in record.devices)
    return next((size for size in stated if size is not None), None)


def _cache_bytes(records: Sequence[Record]) -> float | None:
    """The last cache before the device's memory: a GPU's L2, a CPU's L3."""
    stated = (device.l2_cache_bytes for record in records for device in record.devices)
    on_device = next((size for size in stated if size is not None), None)
    if on_device is not None:
        return on_device
    for record in records:
        caches = (record.facts.host.cpu or CpuFacts()).caches or {}
        match = re.fullmatch(r"(\d+)([KMG])i?B?", str(caches.get("L3") or caches.get("L2") or ""))
        if match:
            return float(match.group(1)) * UNITS[match.group(2)]
    return None


NOT_RUN = "it was not run with sync=off"
DeviceCount = tuple[int, int]  # devices of all nodes together, and nodes


@dataclass(frozen=True)
class ScalingPoint:
    """One count of devices."""

    devices: int
    nodes: int
    batch: int | None  # samples per step and device
    side: Side  # the rate, and what its interval covers
    free: Side | None  # the same with sync=off
    speedup: ValueInterval | None
    efficiency: ValueInterval | None
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
    settings: dict[str, Value]  # as requested, of all points
    points: list[ScalingPoint]
    fit: Fit | None
    changes: list[Change]  # what else differs from the run on one device
    alarms: list[SuperlinearEfficiency]
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
    ordered = sorted(records, key=lambda record: (device_count(record), is_free(record), record.id))
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
        workload=ordered[0].trial.workload,
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
    return record.status == "ok" and not record.rate_fails and side([record]).rate is not None


def _of(records: Sequence[Record], count: DeviceCount, free: bool = False) -> list[Record]:
    return [record for record in records if _count(record) == count and is_free(record) == free]


def _count(record: Record) -> DeviceCount:
    return device_count(record), node_count(record)


def _point(
    count: DeviceCount,
    base: Sequence[Record],
    good: Sequence[Record],
    every: Sequence[Record],
    no_free: str,
    collectives: Sequence[Record],
) -> ScalingPoint:
    devices, nodes = count
    pool = repeats_of(good)  # where one count was repeated, it shows the variation of those that were not
    ours, free = _of(good, count), _of(good, count, free=True)
    here = (
        side(ours, pool, base) if ours else Side([one.id for one in _of(every, count)], None, None, None, None, "none")
    )
    reason = _no_speedup(devices, here, base)
    speedup = None
    if reason is None:
        speedup = ValueInterval(1.0, 1.0, 1.0) if devices == 1 else rate_figure(here, side(base, pool, ours))
    efficiency = None if speedup is None else divided_by(speedup, devices)
    lost = None
    if efficiency is not None and devices > 1:
        tried = _of(every, count, free=True)
        lost = losses(
            base, ours, free, efficiency, f"the run with sync=off {_end(tried[0])}" if tried else no_free, pool
        )
    return ScalingPoint(
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
    values = [record.value(name) for record in records]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _no_speedup(devices: int, here: Side, base: Sequence[Record]) -> str | None:
    """Why this count has no speedup over one device."""
    if here.rate is None:
        return f"no run on {counted(devices, 'device')} ended well"
    if not base:
        return "no run on one device ended well, and efficiency is against one device"
    unit = side(base).unit
    return None if here.unit == unit else f"it counts {here.unit}, and the run on one device {unit}"


def _fit(kind: str, points: Sequence[ScalingPoint], predict: Sequence[int]) -> Fit | None:
    # Of the same number of devices on fewer and on more nodes the law takes the first.
    speedups = {point.devices: point.speedup for point in reversed(points) if point.speedup is not None}
    if 1 not in speedups or any(_above_ideal(point) for point in points):
        return None  # no law of scaling has more than 100 %, and one that cannot hold predicts nothing
    one = next(point.side for point in points if point.devices == 1)
    known = (
        ValueInterval(one.rate or 1.0, one.low, one.high) if one.interval != "none" else ValueInterval(one.rate or 1.0)
    )
    largest = max(speedups)
    return fit(kind, speedups, known, predict or (2 * largest, 4 * largest))


def _above_ideal(point: ScalingPoint) -> bool:
    """Whether more than 100 % is shown, and not only seen."""
    low = None if point.efficiency is None or point.devices == 1 else point.efficiency.low
    return low is not None and low > 1.0


def _device(records: Sequence[Record]) -> str | None:
    """What counts as one device: NVIDIA H200 (one GPU), or a process on a CPU."""
    devices = (device for record in records for device in record.devices)
    named = next((device for device in devices if device.name), None)
    if named is None:
        return None
    if named.kind == "cpu":  # each of several has a share of the host's cores
        return f"a process on {named.name}"
    return f"{named.name} ({named.counts_as})" if named.counts_as else named.name


def _why(record: Record) -> str:
    free = " with sync=off" if is_free(record) else ""
    return f"{record.id} ({device_count(record)} devices{free}) {_end(record)}"


def _end(record: Record) -> str:
    if record.status == "ok":
        failed = record.rate_fails
        return f"failed its check {', '.join(failed)}" if failed else "has no rate"
    said = (record.failure.message if record.failure else "").partition("\n")[0]
    return f"{'was interrupted' if record.status == 'interrupted' else 'failed'}: {said}"
