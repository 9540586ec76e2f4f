"""How much runs of one trial vary: between repeats, between seeds, and between nodes."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prony.analysis.summary import (
    DRAWN,
    LABELS,
    asked_settings,
    chosen_settings,
    learning_of,
    settings_of,
    show_setting,
    word,
)
from prony_node.contract.record import Record
from prony_node.contract.settings import Value
from prony_node.contract.typed import encode
from prony_node.stats import mean_interval, t_quantile

PRIOR_DEVIATION, PRIOR_DEGREES = 0.0025, 1.0  # a scaled t: SDs of repeats range from 0.01 % to 30 %
CPU_PRIOR_DEVIATION = 0.01  # assumed: CPUs are shared with the system and often with others
LEAST_DEGREES = 2.0  # fewer say too little: two repeats may agree by chance
MOST_BORROWED_DEGREES = 2.0  # of other settings: the SD itself changes with the settings
MOST_NAMED = 3  # settings that tell the nearest apart
NORMAL = 1.959964  # the within-run interval of a record is one of 95 %
OWN, SAME_TRIAL, NEAREST, PRIOR = "own runs", "same trial", "nearest settings", "prior"


@dataclass(frozen=True)
class Repeat:
    """A good run, as far as variation between runs is concerned."""

    id: str
    workload: str
    device: str | None  # its name: NVIDIA H200
    place: tuple[str | None, str | None]  # fingerprints of machine and software
    settings: Mapping[str, Value]  # effective ones
    rate: float


@dataclass(frozen=True)
class Variation:
    """The relative standard deviation of one run's rate between runs, and where it was taken from."""

    deviation: float
    degrees: float
    kind: str  # OWN, SAME_TRIAL, NEAREST or PRIOR
    source: str  # in words
    runs: int  # how many repeats it was taken from
    within: float = 0.0  # what the run itself leaves open beside it, as a relative standard error

    def half_width(self, count: int) -> float:
        """95 %, on the log scale, of the mean of this many runs."""
        return math.hypot(t_quantile(0.975, self.degrees) * self.deviation, NORMAL * self.within) / math.sqrt(count)


def repeats_of(records: Iterable[Record]) -> list[Repeat]:
    """The good runs among these records."""
    found = []
    for record in records:
        rate = record.value("throughput")
        if record.status != "ok" or rate is None or rate <= 0.0:
            continue
        found.append(
            Repeat(
                id=record.id,
                workload=record.trial.workload,
                device=record.device.name,
                place=(record.fingerprint.machine, record.fingerprint.software),
                settings=settings_of(record),
                rate=float(rate),
            )
        )
    return found


def own_variation(rates: Sequence[float], within: float) -> Variation:
    """Of two or more runs, by their own spread. It is never less than what each run leaves open by itself."""
    variance, degrees = _pooled([list(rates)])
    source = f"{len(rates)} runs"
    return Variation(max(math.sqrt(variance), within), degrees, OWN, source, len(rates))


def borrowed_variation(one: Repeat, within: float, pool: Iterable[Repeat], others: Iterable[Repeat] = ()) -> Variation:
    """Of one run: from the pool, or from the runs of the other side, whichever is nearest to its settings.

    Repeats at growing distance are pooled until they have two degrees of freedom.
    """
    groups = _groups(one, pool, others)
    taken: list[list[float]] = []
    degrees, farthest, settings = 0.0, 0.0, one.settings
    for distance, members in groups:
        if degrees >= LEAST_DEGREES and distance > farthest:
            break
        taken.append([member.rate for member in members])
        degrees += len(members) - 1
        farthest, settings = distance, members[0].settings
    variance = _pooled(taken)[0] if taken else 0.0
    prior = prior_deviation(one.settings)
    if degrees < LEAST_DEGREES:
        deviation = max(prior, math.sqrt(variance))
        return Variation(deviation, PRIOR_DEGREES, PRIOR, "the prior", sum(map(len, taken)), within)
    runs = sum(map(len, taken))
    if farthest == 0.0:
        source = f"{runs} repeats of the same trial"
        return Variation(max(math.sqrt(variance), within), degrees, SAME_TRIAL, source, runs)
    source = f"{runs} repeats of the nearest settings ({_told_apart(one.settings, settings)})"
    deviation = max(math.sqrt(variance), within, prior)
    return Variation(deviation, min(degrees, MOST_BORROWED_DEGREES), NEAREST, source, runs)


def prior_deviation(settings: Mapping[str, Value]) -> float:
    """The relative SD between runs that is assumed where nothing is known; settings are effective ones."""
    return CPU_PRIOR_DEVIATION if str(settings.get("device", "")).startswith("cpu") else PRIOR_DEVIATION


def distance(ours: Mapping[str, Value], theirs: Mapping[str, Value]) -> float:
    """How far apart two settings are: how many differ; a batch size counts once per factor of two, at least once."""
    names = _chosen(ours).keys() | _chosen(theirs).keys()
    differ = [name for name in names if ours.get(name) != theirs.get(name)]
    far = float(len(differ))
    sizes = (ours.get("batch_size"), theirs.get("batch_size"))
    if "batch_size" in differ and all(isinstance(size, int) and size > 0 for size in sizes):
        far += max(0.0, abs(math.log2(sizes[0] / sizes[1])) - 1.0)  # type: ignore[operator]
    return far


def _groups(one: Repeat, pool: Iterable[Repeat], others: Iterable[Repeat]) -> list[tuple[float, list[Repeat]]]:
    """Groups of two or more repeats with this run's workload, mode and kind of device, the nearest first.

    Repeats of one group share their settings, machine and software. The run itself is in none: were it slow for
    a reason, it would hide that behind its own deviation. The runs of the other side are a group of their own.
    """
    theirs = {other.id: other for other in others}
    known = {repeat.id: repeat for repeat in pool if repeat.id != one.id and repeat.id not in theirs}
    found: dict[str, list[Repeat]] = {}
    for group, repeats in (("rest", known.values()), ("other side", theirs.values())):
        for repeat in repeats:
            if _is_alike(one, repeat):
                key = json.dumps([group, _chosen(repeat.settings), repeat.place], sort_keys=True, default=str)
                found.setdefault(key, []).append(repeat)
    several = [members for members in found.values() if len(members) > 1]
    return sorted(((distance(one.settings, some[0].settings), some) for some in several), key=lambda pair: pair[0])


def _is_alike(one: Repeat, other: Repeat) -> bool:
    same = one.workload == other.workload and one.device == other.device
    return same and one.settings.get("mode") == other.settings.get("mode")


def _chosen(settings: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in settings.items() if name not in (*DRAWN, *LABELS) and value is not None}


def _told_apart(ours: Mapping[str, Value], theirs: Mapping[str, Value]) -> str:
    names = sorted(name for name in _chosen(ours) | _chosen(theirs) if ours.get(name) != theirs.get(name))
    if len(names) > MOST_NAMED:
        return f"{len(names)} settings differ"
    return ", ".join(f"{name}={show_setting(theirs.get(name))}" for name in names)


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The variance of log rates within groups, each by its own mean, and its degrees of freedom."""
    squares, degrees = 0.0, 0
    for rates in groups:
        logs = [math.log(rate) for rate in rates]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((log - mean) ** 2 for log in logs)
        degrees += len(logs) - 1
    return squares / degrees, float(degrees)


FEWEST = 4  # nodes from which on one can be told from the others
ROBUST = 1.4826  # the median absolute deviation of a normal spread, times this, is its standard deviation
DEVIATIONS = 4.0  # of hundreds of nodes alike, not one is this far off by chance
SMALLEST = 0.02  # a share of the rate below which nobody would swap a node


@dataclass(frozen=True)
class Member:
    """A node, or a device of it, with its rate, and how far it is from the middle of all."""

    name: str
    rate: float
    off: float  # a share of the middle: -0.1 is 10 % slower
    out: bool


@dataclass(frozen=True)
class Family:
    """All that have a rate, slowest first; `verdict` says it in a sentence."""

    members: list[Member]
    middle: float
    allowed: float | None  # the share that a node may be off; None when they are too few to tell
    verdict: str


def family(rates: Mapping[str, float], what: str = "nodes") -> Family | None:
    """The middle is the median and the spread that of the middle half, so that a bad node does not hide itself.

    `what` is measured: nodes, or devices of nodes.
    """
    if not rates:
        return None
    middle = statistics.median(rates.values())
    if len(rates) < FEWEST or middle <= 0.0:
        members = [Member(name, rate, rate / middle - 1.0 if middle else 0.0, False) for name, rate in rates.items()]
        members.sort(key=lambda member: member.rate)
        verdict = f"{len(rates)} {what} have a rate; which of them is unlike the others can be told from {FEWEST} on"
        return Family(members, middle, None, verdict)
    deviation = ROBUST * statistics.median(abs(rate - middle) for rate in rates.values())
    allowed = max(DEVIATIONS * deviation / middle, SMALLEST)
    members = [
        Member(name, rate, rate / middle - 1.0, abs(rate / middle - 1.0) > allowed) for name, rate in rates.items()
    ]
    members.sort(key=lambda member: member.rate)
    out = [f"{member.name} ({100 * member.off:+.1f} %)" for member in members if member.out]
    if not out:
        verdict = f"all {len(rates)} {what} are within ± {100 * allowed:.1f} % of their median"
    else:
        verdict = f"out of family: {', '.join(out)}; the others are within ± {100 * allowed:.1f} % of the median"
    return Family(members, middle, allowed, verdict)


SPREAD = ("quality", "time_to_quality", "energy_to_quality", "throughput", "samples_per_wh")


@dataclass(frozen=True)
class Spread:
    """One metric over the seeds of a trial, or over its repeats where all have one seed."""

    name: str
    unit: str
    count: int  # independent values: seeds, or runs
    mean: float
    low: float | None  # 95 %, of the mean, by Student's t; None with one value
    high: float | None
    deviation: float | None
    least: float
    most: float


@dataclass(frozen=True)
class Group:
    """Good runs that differ in the seed and the repeat alone."""

    workload: str
    settings: dict[str, Value]  # as requested, without the seed
    seeds: list[Value | None]
    records: list[Record]
    left_out: int  # runs that failed or were interrupted
    until: str | None  # the target of all of them
    reached: int  # how many runs reached it
    spreads: list[Spread]


def groups(records: Sequence[Record], names: Sequence[str] = SPREAD) -> list[Group]:
    """The trials among these records, in order, each with the spread of its metrics."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(_key(record), []).append(record)
    return [_group(those, names) for those in found.values()]


def independent(records: Sequence[Record], name: str) -> list[float]:
    """A metric's independent values: one a seed, the mean of its runs, or one a run where there is one seed.

    Runs of one seed share their weights and the order of their data, so they are no three draws of a seed.
    """
    by_seed: dict[str, list[float]] = {}
    for record in records:
        value = record.value(name)
        if value is not None:
            by_seed.setdefault(str(settings_of(record).get("seed")), []).append(value)
    if len(by_seed) == 1:
        return next(iter(by_seed.values()))
    return [mean_interval(values).mean for values in by_seed.values()]


def seeds_of(records: Sequence[Record]) -> list[Value | None]:
    """The seeds of these records, each once."""
    return list({str(seed): seed for seed in (settings_of(record).get("seed") for record in records)}.values())


def _key(record: Record) -> str:
    """What tells trials apart, and where they were run; the seed does not."""
    trial, place = record.trial, encode(record.fingerprint)
    parts = [trial.workload, chosen_settings(asked_settings(record)), trial.file, place]
    return json.dumps(parts, sort_keys=True, default=str)


def _group(records: list[Record], names: Sequence[str]) -> Group:
    good = [record for record in records if record.status == "ok"]
    targets = {learning.until for record in good if (learning := learning_of(record))}
    return Group(
        workload=records[0].trial.workload,
        settings=chosen_settings(asked_settings(records[0])),
        seeds=seeds_of(good),
        records=good,
        left_out=len(records) - len(good),
        until=next(iter(targets)) if len(targets) == 1 else None,
        reached=sum(bool((learning := learning_of(record)) and learning.reached) for record in good),
        spreads=[spread for name in names if (spread := _spread(good, name))],
    )


def _spread(records: list[Record], name: str) -> Spread | None:
    values = independent(records, name)
    if not values:
        return None
    metrics = [metric for record in records if (metric := record.metric(name)) is not None]
    unit = word(metrics[0].unit) if metrics else None
    found = mean_interval(values)
    return Spread(
        name=name,
        unit=unit or "",
        count=len(values),
        mean=found.mean,
        low=found.low,
        high=found.high,
        deviation=found.standard_deviation,
        least=min(values),
        most=max(values),
    )
