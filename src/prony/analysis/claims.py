"""A publication's conclusions tested: on records, by intervals of ratios, and on the publication's own figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prony.analysis.compare import compare
from prony.analysis.published_tables import (
    NOT_RUN,
    TINY_MODEL,
    Asked,
    StudyResults,
    device_name,
    energy_fails,
    failure,
    is_good,
    measured,
    said,
    total,
)
from prony.analysis.summary import settings_of
from prony.analysis.variation import Repeat, repeats_of
from prony.catalog import (
    ACCURACY,
    FIRST_EPOCH,
    PER_DEVICE,
    PER_WH,
    POWER,
    RATE,
    TIME,
    CellSpec,
    ClaimSpec,
    Ratio,
    TableSpec,
)
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record
from prony_node.contract.settings import all_devices
from prony_node.contract.trial import Trial
from prony_node.stats import between_run

HOLDS, FAILS, UNDECIDED, UNTESTED = "holds here", "does not hold here", "not decided here", "cannot be tested here"
OWN_TOLERANCE = 0.05  # relative: a figure in words ("1.6x") is rounded, and figures are read from charts
ROUNDING = 0.005  # absolute: figures and words of a publication have two decimals
STEPS = 64  # of an interval, at which an expression is evaluated: it need not be monotone
CALIBRATION = 0.05  # of a power sensor, as NVIDIA states it; it does not cancel between devices
NO_INTERVAL = "one run says nothing of the variation between runs; repeat the runs"
OTHER_MACHINE = "no run of it on the machine of the newest run"
SAME_RUNS = "the study has one trial for both sides"
SHOWN = 3  # values of a claim that has many
METRIC_NAMES = {PER_WH: "samples_per_wh", POWER: "power"}


@dataclass(frozen=True)
class ClaimValue:
    """A quantity with its 95 % interval, or why it has none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str | None = None  # there is no value, or no interval
    text: str = ""  # the expression that it is of

    def to_json(self) -> dict[str, Any]:
        return {"of": self.text, "value": self.value, "low": self.low, "high": self.high, "reason": self.why}


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: ClaimSpec
    verdict: str
    values: tuple[ClaimValue, ...]
    own: tuple[ClaimValue, ...]  # the same expressions over the publication's figures, where it has them
    contradicted: str | None  # by these: in words
    missing: tuple[str, ...] = ()  # what a test would need besides

    def to_json(self) -> dict[str, Any]:
        claim = self.claim
        return {
            "says": claim.says, "place": claim.place, "metric": claim.metric, "above": claim.above,
            "below": claim.below, "tested": claim.tested, "published": claim.published, "verdict": self.verdict,
            "missing": list(self.missing),
            "values": [one.to_json() for one in self.values], "published_values": [one.to_json() for one in self.own],
            "contradicted_by_its_own_numbers": self.contradicted,
        }  # fmt: skip


def judge(
    claims: Sequence[ClaimSpec], known: StudyResults, anywhere: Mapping[str, Sequence[Record]] | None = None
) -> list[Judged]:
    """Test each claim. `anywhere` has the records of every machine by trial, for claims that name devices."""
    machines = known.records if anywhere is None else anywhere
    pool = repeats_of(record for records in machines.values() for record in records)
    return [_judge(claim, known, machines, pool) for claim in claims]


def concerns(claim: ClaimSpec, trials: Sequence[Trial]) -> bool:
    """Whether any of these trials is a cell of the claim."""
    return any(_is_of(cell, trial) for cell in claim.cells.values() for trial in trials)


def _judge(
    claim: ClaimSpec, known: StudyResults, anywhere: Mapping[str, Sequence[Record]], pool: Sequence[Repeat]
) -> Judged:
    chosen = {name: _chosen(cell, known, anywhere) for name, cell in claim.cells.items()}
    chosen = _of_one_machine(claim, chosen)
    values = tuple(_value(ratio, claim, chosen, pool) for ratio in claim.values)
    own = tuple(found for ratio in claim.values if (found := _own(ratio, claim)) is not None)
    return Judged(claim, _verdict(claim, values), values, own, _contradicted(claim, own), _missing(chosen, values))


def _missing(chosen: Mapping[str, _Chosen], values: Sequence[ClaimValue]) -> tuple[str, ...]:
    """What keeps a claim from being decided: devices, runs of cells, else intervals; each once."""
    devices = list(dict.fromkeys(one.needs for one in chosen.values() if one.needs))
    found = [f"needs runs on {', '.join(devices)}"] if devices else []
    reasons: dict[str, list[str]] = {}
    for name, one in chosen.items():
        if one.why and not one.needs:
            reasons.setdefault(one.why, []).append(f"{name} ({one.devices} devices)" if one.devices > 1 else name)
    found += [f"no value of {', '.join(names)}: {why}" for why, names in reasons.items()]
    if found:
        return tuple(found)
    return tuple(
        dict.fromkeys(f"no {'value' if one.value is None else 'interval'}: {one.why}" for one in values if one.why)
    )


def _verdict(claim: ClaimSpec, values: Sequence[ClaimValue]) -> str:
    """One ratio that certainly lies outside the bounds decides, whatever is missing of the others."""
    states = [state(claim, one) for one in values]
    return next(verdict for verdict in (FAILS, UNTESTED, UNDECIDED, HOLDS) if verdict in states)


def state(claim: ClaimSpec, one: ClaimValue) -> str:
    """The verdict on one of its ratios."""
    if one.value is None:
        return UNTESTED
    if one.low is None or one.high is None:
        return UNDECIDED
    if claim.holds(one.low) and claim.holds(one.high):
        return HOLDS
    below = claim.above is not None and one.high <= claim.above
    beyond = claim.below is not None and one.low >= claim.below
    return FAILS if below or beyond else UNDECIDED


@dataclass(frozen=True)
class _Chosen:
    """The records of a cell, or why it has none."""

    records: tuple[Record, ...] = ()
    why: str | None = None
    needs: str | None = None  # the devices that there is no run on
    devices: int = 1


def _chosen(cell: CellSpec, known: StudyResults, anywhere: Mapping[str, Sequence[Record]]) -> _Chosen:
    trials = [one for one in known.trials if _is_of(cell, one)]
    if not trials:
        return _Chosen(why=known.absent)
    devices = total(trials[0])
    records = anywhere if cell.on else known.records
    found = [record for one in trials for record in records.get(one.hash, ()) if cell.is_on(device_name(record))]
    if not found and cell.on:
        needs = f"{devices} x {cell.on}"
        return _Chosen(why=f"no run on {needs}", needs=needs)
    if not found:
        return _Chosen(why=known.missing.get(trials[0].hash, NOT_RUN), devices=devices)
    good = tuple(record for record in found if is_good(record))
    if any(settings_of(record).get("size") == "tiny" for record in good):
        return _Chosen(why=TINY_MODEL)
    return _Chosen(good) if good else _Chosen(why=failure(found[0]), devices=devices)


def _is_of(cell: CellSpec, trial: Trial) -> bool:
    """What a trial does not state agrees with `match`, as in tables; `only` is exact."""
    if trial.workload != cell.workload:
        return False
    agrees = all(said(trial, name) in (None, *values) for name, values in cell.match.items())
    return agrees and all(said(trial, name) in values for name, values in cell.only.items())


def _of_one_machine(claim: ClaimSpec, chosen: Mapping[str, _Chosen]) -> dict[str, _Chosen]:
    """Of several machines with such a device, that of the newest run, the same for all cells that name it."""
    kept = {}
    for name, one in chosen.items():
        alike = [chosen[other] for other, cell in claim.cells.items() if cell.on == claim.cells[name].on]
        every = [record for other in alike for record in other.records]
        newest = max(every, key=lambda record: record.started or "", default=None)
        mine = tuple(record for record in one.records if newest is not None and _machine(record) == _machine(newest))
        kept[name] = replace(one, records=mine, why=one.why or (None if mine else OTHER_MACHINE))
    return kept


def _machine(record: Record) -> str | None:
    return record.fingerprint.machine


def _value(ratio: Ratio, claim: ClaimSpec, chosen: Mapping[str, _Chosen], pool: Sequence[Repeat]) -> ClaimValue:
    named = [name for pair in ratio.pairs for name in pair if name]
    why = [f"{name}: {chosen[name].why}" for name in dict.fromkeys(named) if chosen[name].why]
    if why or any(under and chosen[over].records == chosen[under].records for over, under in ratio.pairs):
        return ClaimValue(None, why="; ".join(why) or SAME_RUNS, text=ratio.text)
    sides = [chosen[name].records for name in named]
    shared = any(one in sides[:number] for number, one in enumerate(sides))  # by runs: two cells may choose the same
    found = _product([_of_pair(pair, claim, chosen, pool) for pair in ratio.pairs], shared=shared)
    if found.value is None:
        return replace(found, text=ratio.text)
    try:
        value = ratio.of(found.value)
        if found.low is None or found.high is None:
            return ClaimValue(value, why=found.why, text=ratio.text)
        across = [ratio.of(found.low + step / STEPS * (found.high - found.low)) for step in range(STEPS + 1)]
    except RequestError as error:  # it divides by zero there
        return ClaimValue(None, why=str(error), text=ratio.text)
    return ClaimValue(value, min(value, *across), max(value, *across), text=ratio.text)


def _of_pair(
    pair: tuple[str, str], claim: ClaimSpec, chosen: Mapping[str, _Chosen], pool: Sequence[Repeat]
) -> ClaimValue:
    over, under = (chosen[name].records if name else () for name in pair)
    if not pair[1]:
        return _side(over, claim)
    if claim.metric in (RATE, PER_DEVICE, TIME):
        return _rate_ratio(over, under, claim.metric, pool)
    found = _metric_ratio(_side(over, claim), _side(under, claim))
    return _calibrated(found, over, under) if claim.metric in METRIC_NAMES else found


def _product(found: Sequence[ClaimValue], shared: bool) -> ClaimValue:
    """Half widths are added in squares on the log scale; of ratios that share a cell, as they are."""
    if len(found) == 1:
        return found[0]
    values = [one.value for one in found if one.value is not None]
    if len(values) < len(found):
        return ClaimValue(None, why="; ".join(one.why for one in found if one.value is None and one.why))
    ratio, widths = math.prod(values), [_log_width(one) for one in found]
    if 0.0 in widths:
        return ClaimValue(ratio, why=next((one.why for one in found if one.why), NO_INTERVAL))
    factor = math.exp(sum(widths) if shared else math.hypot(*widths))
    return ClaimValue(ratio, ratio / factor, ratio * factor)


def _rate_ratio(over: Sequence[Record], under: Sequence[Record], metric: str, pool: Sequence[Repeat]) -> ClaimValue:
    found = compare(under, over, pool)
    ratio, low, high = found.ratio, found.ratio_low, found.ratio_high
    if ratio is None:
        return ClaimValue(None, why=found.reason)
    factor = _devices(under) / _devices(over) if metric == PER_DEVICE else 1.0
    if low is None or high is None:
        return ClaimValue(1.0 / ratio if metric == TIME else ratio * factor, why=found.reason)
    if metric == TIME:
        return ClaimValue(1.0 / ratio, 1.0 / high, 1.0 / low)
    return ClaimValue(ratio * factor, low * factor, high * factor)


def _devices(records: Sequence[Record]) -> int:
    return all_devices(settings_of(records[0]))


def _metric_ratio(over: ClaimValue, under: ClaimValue) -> ClaimValue:
    """A ratio of other metrics. Half widths are added in squares on the log scale, as for rates of single runs."""
    if over.value is None or under.value is None:
        return ClaimValue(None, why=over.why or under.why)
    ratio, widths = over.value / under.value, [_log_width(over), _log_width(under)]
    if 0.0 in widths:
        return ClaimValue(ratio, why=NO_INTERVAL)
    factor = math.exp(math.hypot(*widths))
    return ClaimValue(ratio, ratio / factor, ratio * factor)


def _calibrated(found: ClaimValue, over: Sequence[Record], under: Sequence[Record]) -> ClaimValue:
    """The uncertainty of both sensors, where they are not the same."""
    if found.value is None or found.low is None or found.high is None or _sensors(over) == _sensors(under):
        return found
    width = math.hypot(_log_width(found), math.sqrt(2.0) * CALIBRATION)
    return replace(found, low=found.value / math.exp(width), high=found.value * math.exp(width))


def _sensors(records: Sequence[Record]) -> set[str]:
    return {str(device.uuid) for record in records for device in record.devices}


def _log_width(side: ClaimValue) -> float:
    """Half of the interval on the log scale; 0: there is none."""
    if side.low is None or side.high is None or not 0.0 < side.low < side.high:
        return 0.0
    return 0.5 * math.log(side.high / side.low)


def _side(records: Sequence[Record], claim: ClaimSpec) -> ClaimValue:
    """Of several runs, with the interval between them. One run has none, but for its accuracy on a test split."""
    found = [_of_record(record, claim) for record in records]
    missing = [one for one in found if one.value is None]
    if missing:
        return missing[0]
    if len(found) == 1:
        return found[0] if claim.metric == ACCURACY else ClaimValue(found[0].value, why=NO_INTERVAL)
    between = between_run([one.value for one in found if one.value is not None])
    return ClaimValue(between.mean, between.low, between.high)


def _of_record(record: Record, claim: ClaimSpec) -> ClaimValue:
    metric = claim.metric
    if metric == ACCURACY:
        return _accuracy(record)
    if metric == FIRST_EPOCH:
        return _first_epoch(record, claim.samples or 0)
    if wrong := energy_fails(record):
        return ClaimValue(None, why=f"failed check: {', '.join(wrong)}")
    name = METRIC_NAMES[metric]
    stated = record.value(name)
    if not stated or stated < 0.0:
        return ClaimValue(None, why=record.reason(name) or f"the record has no {name}")
    share = all_devices(settings_of(record)) if metric == POWER else 1
    return ClaimValue(stated / share)


def _first_epoch(record: Record, samples: int) -> ClaimValue:
    asked = Asked(record, TableSpec(title="", samples={"": samples}), "", "", per_device=False)
    first, later = (measured(name, asked) for name in ("throughput_first_epoch", "throughput"))
    if first.value is None or later.value is None:
        return ClaimValue(None, why=first.why or later.why)
    return ClaimValue(first.value / later.value)


def _accuracy(record: Record) -> ClaimValue:
    """After epoch 10, with the interval of the metric of that epoch, which is of the test split's size."""
    found = measured("accuracy_epoch_10", Asked(record, TableSpec(title=""), "", "", per_device=False))
    if not found.value:
        return ClaimValue(None, why=found.why or "the accuracy is 0")
    is_reported = str(settings_of(record).get("report_at_epochs")) == "10"
    curve = (record.learning.curve if record.learning is not None else None) or ()
    is_last = bool(curve) and curve[-1].epoch == 10
    name = "quality_at_epochs" if is_reported else "quality" if is_last else ""
    stated = record.metrics.get(name)
    return ClaimValue(found.value, stated.low, stated.high) if stated is not None else ClaimValue(found.value)


def _own(ratio: Ratio, claim: ClaimSpec) -> ClaimValue | None:
    product = 1.0
    for over, under in ratio.pairs:
        above, below = (claim.cells[name].published(claim.metric) if name else 1.0 for name in (over, under))
        if above is None or below is None:
            return None
        product *= above / below
    try:
        return ClaimValue(ratio.of(product), text=ratio.text)
    except RequestError:  # it divides by zero there
        return None


def holds_rounded(claim: ClaimSpec, value: float) -> bool:
    """Whether a published value may lie within the bounds before it was rounded."""
    return any(claim.holds(value + off) for off in (-ROUNDING, 0.0, ROUNDING))


def _contradicted(claim: ClaimSpec, own: Sequence[ClaimValue]) -> str | None:
    """What the publication's figures say against its claim: outside the bounds, or another value than it states."""
    outside = [one for one in own if one.value is not None and not holds_rounded(claim, one.value)]
    if outside:
        found = ", ".join(f"{one.value:.3g} for {one.text}" for one in outside[:SHOWN])
        return f"its figures give {found}" + (f" and {len(outside) - SHOWN} more" if len(outside) > SHOWN else "")
    values = [one.value for one in own if one.value is not None]
    if not values or claim.published is None:
        return None
    low, high = min(values) * (1 - OWN_TOLERANCE), max(values) * (1 + OWN_TOLERANCE)
    if low <= claim.published <= high:
        return None
    span = f"{values[0]:.3g}" if len(values) == 1 else f"{min(values):.3g} to {max(values):.3g}"
    return f"it says {claim.published:g}, and its figures give {span}"
