"""Scaling series: which records they are, what else changed in them, and the law fitted to their speedups."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prony.analysis.summary import (
    DRAWN,
    LABELS,
    ROOMS,
    asked_settings,
    count,
    fact_differences,
    setting_differences,
    settings_of,
    show_setting,
)
from prony_node.contract.errors import is_digits
from prony_node.contract.facts import CpuFacts, DeviceFacts
from prony_node.contract.record import RankWork, Record
from prony_node.contract.settings import SEVERAL_ONLY, Value, all_devices, devices_per_node
from prony_node.stats import percentile

NO_WAIT = ("device",)  # data that lies where it is used: nothing is waited for


def device_count(record: Record) -> int:
    """The devices that took part, as counted; as asked for where the run ended before it counted."""
    return count(record.work.devices) or all_devices(_counts(record))


def node_count(record: Record) -> int:
    return _counts(record).get("nodes", 1)


def _counts(record: Record) -> dict[str, int]:
    """Devices and nodes as asked for, as far as they are numbers."""
    stated = settings_of(record)
    return {name: found for name in ("devices", "nodes") if (found := count(stated.get(name)))}


def is_free(record: Record) -> bool:
    """Whether it was the diagnostic in which gradients are not synchronised."""
    return settings_of(record).get("sync") in ("off", False)


def are_copies(record: Record) -> bool:
    """Whether its devices exchange nothing and wait for nobody."""
    return settings_of(record).get("parallel") == "independent"


def device_batch(record: Record) -> int | None:
    """Samples a step on one device."""
    settings = settings_of(record)
    batch, times = count(settings.get("batch_size")), count(settings.get("grad_accumulation")) or 1
    return None if batch is None else batch * times


def global_batch(record: Record) -> int | None:
    """Samples a step on all devices together."""
    stated = count(settings_of(record).get("global_batch"))
    batch = device_batch(record)
    if stated is not None or batch is None:
        return stated
    return batch * device_count(record)


def data_wait(record: Record) -> tuple[float | None, str]:
    """The share of the step spent waiting for data, or why it is not known."""
    share = record.value("data_wait_share")
    if share is None and settings_of(record).get("data") in NO_WAIT:
        return 0.0, ""
    return share, record.reason("data_wait_share") or "the wait for data was not measured"


def cores_each(record: Record) -> str | None:
    """The cores of one rank: those asked for are shared out among the ranks of a node."""
    asked = record.trial.settings.get("cores")
    if asked is None:
        stated = settings_of(record).get("cores")
        return None if stated is None else str(stated)
    ranks = max(1, devices_per_node(_counts(record)))
    if str(asked).endswith("%"):
        return f"{int(str(asked)[:-1]) / ranks:g}%"
    return str(max(1, _core_count(str(asked)) // ranks))


def _core_count(text: str) -> int:
    """`4` are four cores, `0-3,8` are five."""
    if is_digits(text):
        return int(text)
    ends = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def rank_paces(record: Record) -> dict[str, float]:
    """Seconds of a step of each rank by itself; empty unless the record states them for all of its ranks."""
    return _of_ranks(record, lambda rank: rank.pace.seconds if rank.pace is not None else None)


def rank_step_times(record: Record) -> dict[str, float]:
    """Seconds of a step of each rank in the measured window; empty likewise."""
    return _of_ranks(record, lambda rank: rank.step_s)


def _of_ranks(record: Record, get: Callable[[RankWork], float | None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in (record.parallel_work.ranks if record.parallel_work else None) or ():
        seconds = get(rank)
        if seconds is None or seconds <= 0.0:
            return {}
        found[str(rank.rank)] = seconds
    return found


def is_summed(record: Record) -> bool:
    """Whether its rate is the sum of what each rank did, and not that of the first one times their number."""
    return record.parallel_work is not None and record.parallel_work.window_s is not None


WEAK, STRONG = "weak", "strong"
DRAWS = 500
SEED = 20260101  # the same records give the same interval
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class ValueInterval:
    """A value with its 95 % interval; the ends are None where nothing gives them."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Law:
    """Speedup over one device as a function of how many there are."""

    kind: str
    sigma: float
    kappa: float

    def speedup(self, devices: float) -> float:
        fixed, growing = _terms(self.kind, devices)
        return devices / (1.0 + self.sigma * fixed + self.kappa * growing)


@dataclass(frozen=True)
class Prediction:
    """What the law says of a count."""

    devices: int
    speedup: ValueInterval
    efficiency: ValueInterval


@dataclass(frozen=True)
class HeldOut:
    """The largest count, left out of the fit and predicted by it."""

    devices: int
    fitted_to: list[int]
    predicted: ValueInterval
    measured: float
    error: float  # predicted over measured, less 1
    covered: bool | None  # whether the interval of the prediction and that of the measurement meet


@dataclass(frozen=True)
class Fit:
    """The law of a series."""

    name: str
    sigma: ValueInterval
    kappa: ValueInterval | None  # None: too few counts to tell it
    counts: list[int]
    spare: int  # counts more than parameters: 0 says that the law goes through every point whatever they are
    misfit: float  # root mean square of predicted over measured, less 1
    peak: float | None  # devices beyond which the law has the rate fall
    predictions: list[Prediction]
    held_out: HeldOut | None


def fit(
    kind: str, speedups: Mapping[int, ValueInterval], base: ValueInterval, predict: Sequence[int] = ()
) -> Fit | None:
    """The law of these speedups over one device; None without any count above one.

    `base` is the one device's own rate with its interval: what is wrong with it is wrong with every speedup.
    """
    measured = {count: speedups[count] for count in sorted(speedups) if count > 1}
    if not measured:
        return None
    law, parameters = _fit({count: figure.value for count, figure in measured.items()}, kind)
    drawn = _draw(measured, base, kind, law)
    ahead = [count for count in sorted(set(predict)) if count not in measured and count > 1]
    misses = [law.speedup(count) / figure.value - 1.0 for count, figure in measured.items()]
    return Fit(
        name=_name(kind, parameters),
        sigma=_figure(law, drawn, lambda one: one.sigma),
        kappa=_figure(law, drawn, lambda one: one.kappa) if parameters == 2 else None,
        counts=list(measured),
        spare=len(measured) - parameters,
        misfit=math.sqrt(math.fsum(miss * miss for miss in misses) / len(misses)),
        peak=_peak(law),
        predictions=[_predict(law, drawn, count) for count in ahead],
        held_out=_hold_out(kind, measured, base),
    )


def _peak(law: Law) -> float | None:
    """Where the rate of strong scaling is highest; weak scaling has no such count within reach of the law."""
    if law.kind != STRONG or law.kappa <= 0.0 or law.sigma >= 1.0:
        return None
    return math.sqrt((1.0 - law.sigma) / law.kappa)


def _terms(kind: str, devices: float) -> tuple[float, float]:
    """What sigma and kappa stand before, over the time that the work itself takes on so many devices."""
    more = devices - 1.0
    return (more, devices * more) if kind == STRONG else (more / devices, more)


def _name(kind: str, parameters: int) -> str:
    name = "Amdahl's law" if parameters == 1 else "the Universal Scalability Law"
    return name if kind == STRONG else f"{name}, for work that grows with the devices"


def _fit(speedups: Mapping[int, float], kind: str) -> tuple[Law, int]:
    """Least squares of the relative error of the step time, neither part below nothing.

    kappa is fitted from three counts above one on, so that a point is left that could contradict the law.
    """
    rows = []
    for devices, speedup in speedups.items():
        fixed, growing = _terms(kind, devices)
        weight = speedup / devices  # a time is known to a share of itself
        rows.append((fixed * weight, growing * weight, (devices / speedup - 1.0) * weight))
    parameters = 1 if len(rows) < 3 else 2
    candidates = [(0.0, 0.0), (_alone(rows, 0), 0.0)]
    if parameters == 2:
        candidates += [(0.0, _alone(rows, 1)), _together(rows)]
    possible = [pair for pair in candidates if min(pair) >= 0.0]
    sigma, kappa = min(possible, key=lambda pair: _squares(rows, *pair))
    return Law(kind, sigma, kappa), parameters


Rows = Sequence[tuple[float, float, float]]


def _alone(rows: Rows, which: int) -> float:
    top = math.fsum(row[which] * row[2] for row in rows)
    return max(0.0, top / math.fsum(row[which] ** 2 for row in rows))


def _together(rows: Rows) -> tuple[float, float]:
    """Both parts by the normal equations; (-1, -1), which is never taken, where the counts cannot tell them apart."""
    ff, fg, gg = (math.fsum(row[a] * row[b] for row in rows) for a, b in ((0, 0), (0, 1), (1, 1)))
    fy, gy = (math.fsum(row[a] * row[2] for row in rows) for a in (0, 1))
    determinant = ff * gg - fg * fg
    if determinant <= 1e-12 * ff * gg:
        return -1.0, -1.0
    return (gg * fy - fg * gy) / determinant, (ff * gy - fg * fy) / determinant


def _squares(rows: Rows, sigma: float, kappa: float) -> float:
    return math.fsum((sigma * row[0] + kappa * row[1] - row[2]) ** 2 for row in rows)


def _spread(figure: ValueInterval) -> float | None:
    """The standard deviation, on the log scale, whose 95 % interval is this figure's."""
    if figure.low is None or figure.high is None or figure.low <= 0.0:
        return None
    return math.log(figure.high / figure.low) / (2.0 * NORMAL_95)


def _draw(measured: Mapping[int, ValueInterval], base: ValueInterval, kind: str, law: Law) -> list[Law]:
    """Laws of series that could as well have been measured (parametric bootstrap); none without intervals.

    Where the points lie farther from the law than their intervals allow, they are drawn as wide as that: what the law
    does not know must not make its predictions look sure.
    """
    base_spread = _spread(base)
    spreads = {count: _spread(figure) for count, figure in measured.items()}
    if base_spread is None or any(spread is None for spread in spreads.values()):
        return []
    # A speedup's interval holds that of the base; it is drawn once for all of them, and only the rest for each.
    own = {count: math.sqrt(max(0.0, (spread or 0.0) ** 2 - base_spread**2)) for count, spread in spreads.items()}
    spare = len(measured) - (1 if len(measured) < 3 else 2)
    misses = [math.log(law.speedup(count) / figure.value) for count, figure in measured.items()]
    beyond = math.sqrt(math.fsum(miss * miss for miss in misses) / spare) if spare > 0 else 0.0
    source = random.Random(SEED)
    found = []
    for _ in range(DRAWS):
        shared = source.gauss(0.0, base_spread)
        moved = {
            count: figure.value * math.exp(source.gauss(0.0, max(own[count], beyond)) - shared)
            for count, figure in measured.items()
        }
        found.append(_fit(moved, kind)[0])
    return found


def _figure(law: Law, drawn: Sequence[Law], of: Callable[[Law], float]) -> ValueInterval:
    if not drawn:
        return ValueInterval(of(law))
    values = [of(one) for one in drawn]
    low, high = percentile(values, 2.5), percentile(values, 97.5)
    return ValueInterval(of(law), min(low, of(law)), max(high, of(law)))


def _predict(law: Law, drawn: Sequence[Law], count: int) -> Prediction:
    speedup = _figure(law, drawn, lambda one: one.speedup(count))
    return Prediction(count, speedup, divided_by(speedup, count))


def divided_by(figure: ValueInterval, divisor: float) -> ValueInterval:
    """A figure divided by an exact number."""
    ends = (None if end is None else end / divisor for end in (figure.low, figure.high))
    return ValueInterval(figure.value / divisor, *ends)


def _hold_out(kind: str, measured: Mapping[int, ValueInterval], base: ValueInterval) -> HeldOut | None:
    """The largest count predicted from the others; None where only one count is above one."""
    *others, largest = measured
    if not others:
        return None
    known = {count: measured[count] for count in others}
    law, _ = _fit({count: figure.value for count, figure in known.items()}, kind)
    predicted = _predict(law, _draw(known, base, kind, law), largest).speedup
    target = measured[largest]
    ends = (predicted.low, predicted.high, target.low, target.high)
    covered = None
    if not any(end is None for end in ends):
        low, high, target_low, target_high = (float(end) for end in ends if end is not None)
        covered = low <= target_high and target_low <= high
    return HeldOut(largest, others, predicted, target.value, predicted.value / target.value - 1.0, covered)


VARIED = {"devices", "nodes", "sync", "batch_size", "global_batch", *DRAWN}


def find_series(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """The series among these records: one device and more, asked for with the same settings and the same batch.

    A scheduler gives each count the nodes that are free: what is in no machine's own series is one over several
    machines of one kind.
    """
    found = []
    for kind in (WEAK, STRONG):
        for group in _grouped(records, partial(_key, kind=kind)):
            own = [series for those in _grouped(group, _machine) for series in _series_in(those)]
            found += [(kind, series) for series in (*own, *_over_machines(group, own))]
    return found


def _over_machines(group: list[Record], own: list[list[Record]]) -> list[list[Record]]:
    """The series of what no machine has in its own: by itself, else with the machines that have one."""
    known = {id(record) for series in own for record in series}
    rest = [record for record in group if id(record) not in known]
    if alone := _series_in(rest):
        return alone
    more = {id(record) for record in rest if _is_usable(record) and device_count(record) > 1}
    return [series for series in _series_in(group) if any(id(record) in more for record in series)]


def asked_of(record: Record) -> dict[str, Value]:
    """Settings as requested, without those that a series varies."""
    settings = asked_settings(record)
    if cores := "cores" in settings and cores_each(record):
        settings["cores"] = cores
    return {name: value for name, value in settings.items() if name not in VARIED}


def constant_batch(record: Record, kind: str) -> int | None:
    return device_batch(record) if kind == WEAK else global_batch(record)


def _grouped(records: Sequence[Record], key: Callable[[Record], str]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _series_in(records: Sequence[Record]) -> list[list[Record]]:
    """One device has no form of parallel work, so it stands beside each that the others have."""
    alone = [record for record in records if device_count(record) == 1]
    forms = _grouped([record for record in records if device_count(record) > 1], _form)
    return [series for those in forms if _is_series(series := [*alone, *those])]


def _is_series(records: Sequence[Record]) -> bool:
    counts = {device_count(record) for record in records if _is_usable(record)}
    return 1 in counts and len(counts) > 1


def _is_usable(record: Record) -> bool:
    return record.status == "ok" and not record.rate_fails and not is_free(record)


def _form(record: Record) -> str:
    return _text({name: value for name, value in asked_of(record).items() if name in SEVERAL_ONLY})


def _key(record: Record, kind: str) -> str:
    asked = {name: value for name, value in asked_of(record).items() if name not in SEVERAL_ONLY}
    cpu = record.facts.host.cpu or CpuFacts()
    kind_of_machine = [cpu.model, cpu.threads, record.device.name]
    return _text([record.trial.workload, asked, constant_batch(record, kind), kind_of_machine])


def _machine(record: Record) -> str:
    return str(record.fingerprint.machine)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# What a series varies, and what follows from it; cores are those of a node, and compared as those of a rank.
SCALED = ("devices", "nodes", "sync", "global_batch", "learning_rate", "cores")
# Which of several alike a device is, and where it is plugged in: other devices are the point of the series.
PLACE = re.compile(r"devices\.0\.(uuid|rank|host|pci\.(numa_node|cpus))")


@dataclass(frozen=True)
class Change:
    """Something besides the number of devices that is not what it was on one device."""

    what: str  # a setting's name, or a room of facts: machine, software
    one: Any  # on one device
    others: dict[str, Any]  # by the number of devices

    @property
    def sentence(self) -> str:
        values = ", ".join(f"{show_setting(value)} on {devices}" for devices, value in self.others.items())
        return f"{self.what}: {show_setting(self.one)} on one device, {values}"


def changes(base: Record, others: Sequence[Record], kind: str) -> list[Change]:
    """Settings and facts of the others that differ from the base's without following from the number of devices."""
    allowed = {*SCALED, *LABELS, *DRAWN, *(("batch_size",) if kind == STRONG else ())}
    found: dict[str, Change] = {}
    for record in others:
        devices = str(device_count(record))
        for difference in setting_differences(base, record):
            # What only one side has follows from another setting, and that is compared itself.
            if difference.name in allowed or difference.a is None or difference.b is None:
                continue
            change = found.setdefault(difference.name, Change(difference.name, difference.a, {}))
            change.others[devices] = difference.b
        cores, theirs = cores_each(base), cores_each(record)
        shared = [("cores of a rank", cores, theirs)] if cores != theirs else []
        for name, one, other in [*shared, *_facts(base, record)]:
            found.setdefault(name, Change(name, one, {})).others.setdefault(devices, other)
    return list(found.values())


def _facts(base: Record, record: Record) -> list[tuple[str, Any, Any]]:
    """Facts that differ, each device of the record held against the one of the base."""
    alone = _with_devices(base, base.facts.devices[:1])
    found: dict[str, tuple[str, Any, Any]] = {}
    for device in record.facts.devices or (DeviceFacts(),):
        for one in fact_differences(alone, _with_devices(record, (device,))).matter:
            if not PLACE.fullmatch(one.name):
                found.setdefault(one.name, (one.name, one.a, one.b))
    for name in ("machine", "software"):
        a, b = (getattr(side.fingerprint, name) for side in (base, record))
        explained = any(ROOMS.get(fact.partition(".")[0]) == name for fact in found)
        if a != b and a is not None and b is not None and not explained:
            found[f"fingerprint of the {name}"] = (f"fingerprint of the {name}", a, b)
    return list(found.values())


def _with_devices(record: Record, devices: tuple[DeviceFacts, ...]) -> Record:
    return replace(record, facts=replace(record.facts, devices=devices))


OPERATIONS = {"ddp": "allreduce", "fsdp": "allgather"}  # what most of a step's exchange is, by the form of the work


@dataclass(frozen=True)
class Link:
    """The bus bandwidth that a collective reached with its largest message, between as many devices."""

    run: str
    operation: str
    bandwidth: ValueInterval  # bytes per second


def operation_of(record: Record) -> str | None:
    """The collective that shows what the exchange of this run could reach; None where no one does."""
    return OPERATIONS.get(str(settings_of(record).get("parallel", "")))


def find_link(ours: Sequence[Record], collectives: Sequence[Record]) -> Link | None:
    """Of the good runs of that collective, between as many devices of the same machine, the latest."""
    if not ours:
        return None
    found = [one for one in collectives if one.status == "ok" and _beside(one, ours[0]) and _bandwidth(one)]
    if not found:
        return None
    record = max(found, key=lambda one: (one.ended or "", one.id))
    bandwidth = _bandwidth(record)
    assert bandwidth is not None
    return Link(record.id, record.trial.workload, bandwidth)


def _beside(collective: Record, ours: Record) -> bool:
    theirs, own = (one.fingerprint.machine for one in (collective, ours))
    return (
        collective.trial.workload == operation_of(ours)
        and (device_count(collective), node_count(collective)) == (device_count(ours), node_count(ours))
        and theirs is not None
        and theirs == own
    )


def _bandwidth(record: Record) -> ValueInterval | None:
    stated = record.metric("bus_bandwidth")
    if stated is None or stated.value is None:
        return None
    return ValueInterval(stated.value, stated.low, stated.high)
