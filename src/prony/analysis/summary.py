"""One record in short: its settings and facts, what it learned, its energy, and the headline; and where two differ."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from prony_node.contract.facts import CpuFacts
from prony_node.contract.metrics import JOULES_A_WH, Rates, carbon_g, price
from prony_node.contract.record import (
    LEVELS,
    PLAUSIBLE,
    Check,
    EnergyPart,
    LearnedEpoch,
    Learning,
    Metric,
    NodeShare,
    Record,
    is_possible_rate,
)
from prony_node.contract.run_folder import CHANGED_AFTER, UNCHANGED
from prony_node.contract.settings import SETTINGS, Value
from prony_node.contract.typed import encode

# Settings and facts of records: what they are, and where they differ.


LONGEST_WORD = 60


def number(value: Any) -> float | None:
    """A finite number; None for whatever else a stranger's record holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """A whole number of at least 0."""
    found = number(value)
    return int(found) if found is not None and found >= 0.0 and found == int(found) else None


def word(value: Any, longest: int = LONGEST_WORD) -> str | None:
    """A text on one line, cut where it is too long to be shown."""
    if not isinstance(value, str):
        return None
    printable = (sign if sign.isprintable() else " " for sign in value[: 2 * longest])
    text = " ".join("".join(printable).split())
    return f"{text[: longest - 3]}..." if len(text) > longest else text or None


# The study behind a preset only says where its settings come from.
LABELS = ("study",)
# What no preset chooses: a difference that nobody asked for is then the machine's.
NO_PRESETS = ("workload", "device", "cores")
# Runs that differ in these alone are repeats: a seed is drawn, not chosen.
DRAWN = ("seed",)
USUAL = ("mode", "batch_size", "precision")


@dataclass(frozen=True)
class Difference:
    """Something that is not the same on both sides; None where a side does not have it."""

    name: str
    a: Any
    b: Any


def settings_of(record: Record) -> dict[str, Value]:
    """Effective settings; as requested where the run failed before they were known."""
    return dict(cast("Mapping[str, Value]", record.trial.effective or record.trial.settings))


def asked_settings(record: Record) -> dict[str, Value]:
    """Settings as requested."""
    return dict(cast("Mapping[str, Value]", record.trial.settings))


def show_setting(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def setting_differences(a: Record, b: Record) -> list[Difference]:
    """Settings that differ, the workload first, then in the order in which settings are listed."""
    found = []
    if a.trial.workload != b.trial.workload:
        found.append(Difference("workload", a.trial.workload, b.trial.workload))
    ours, theirs = settings_of(a), settings_of(b)
    for name in in_order(ours | theirs):
        if ours.get(name) != theirs.get(name):
            found.append(Difference(name, ours.get(name), theirs.get(name)))
    return found


def questions(differences: Sequence[Difference], records: Sequence[Record]) -> list[str]:
    """The settings that a comparison of these records is about.

    A setting that one side alone has (the optimizer, against inference) follows from another one that
    differs: it is no question of its own, unless alone. A seed never is one.
    """
    chosen = [d for d in differences if d.name not in DRAWN]
    own = [d.name for d in chosen if d.a is not None and d.b is not None and d.name not in LABELS]
    return without_presets_choices(own, records) or [d.name for d in chosen]


def without_presets_choices(names: list[str], records: Sequence[Record]) -> list[str]:
    """What differs between these records; where presets do, without what they chose and nobody asked for.

    A preset is more than the settings that it chooses: with `fast` kernels are tried out and batch norms folded.
    """
    if "preset" not in names:
        return names
    asked = {"preset", *NO_PRESETS, *(name for record in records for name in record.trial.settings)}
    return [name for name in names if name in asked]


def chosen_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Settings without those that tell repeats apart."""
    return {name: value for name, value in settings.items() if name not in DRAWN}


def varying(records: Sequence[Record]) -> list[str]:
    """Settings that take more than one value over these records."""
    every = [settings_of(record) for record in records]
    names = in_order(name for settings in every for name in settings)
    values = {name: {str(settings[name]) for settings in every if name in settings} for name in names}
    found = [name for name in names if len(values[name]) > 1]
    return without_presets_choices([name for name in found if name not in LABELS], records)


def shown_settings(records: Sequence[Record]) -> list[str]:
    """The settings that a table of these records shows: the usual ones, what a workload's runs vary, and what some of
    them alone have (bind=numa), where rows would be alike without it.

    What differs between workloads alone follows from the workload and would only widen the table.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.trial.workload, []).append(record)
    usual = [name for name in USUAL if any(name in settings_of(record) for record in records)]
    names = [*usual, *(name for group in groups.values() for name in varying(group))]
    names += [name for group in groups.values() for name in _hidden(group, names)]
    return in_order(names)


def _hidden(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    """What was asked for and only some records have, of those that agree in everything that is shown."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        settings = settings_of(record)
        alike.setdefault(tuple(str(settings.get(name)) for name in shown), []).append(record)
    found: list[str] = []
    for group in alike.values():
        for name in {name for record in group for name in record.trial.settings} - {*LABELS, *DRAWN}:
            if len({str(settings_of(record).get(name)) for record in group}) > 1:
                found.append(name)
    return in_order(found)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the settings' table, a workload's own ones after them."""
    known = dict.fromkeys(names)
    return [name for name in SETTINGS if name in known] + sorted(name for name in known if name not in SETTINGS)


# What each precision gives up against fp32, in words.
PRECISIONS = {
    "default": "convolutions rounded to 10 bits, other products in single precision",
    "fp32": "single precision throughout",
    "tf32": "products rounded to 10 bits",
    "bf16": "products in 8 bits of precision, weights in fp32",
    "bf16-pure": "no fp32 at all: small updates of weights are lost",
    "fp16": "products in 11 bits with a small range, losses scaled, weights in fp32",
    "fp8": "linear layers in 8-bit numbers",
}
# These change how a step is computed, never what: kernels, layouts, loaders.
SAME_MATHEMATICS = {
    "compile", "compile_cache", "graphs", "memory_format", "fused", "workers", "prefetch", "pin_memory", "cores",
    "recompute", "kernels", "decode", "cache", "stage", "data_format", "device", "memory_cap", "preset",
}  # fmt: skip
SIZES = ("batch_size", "grad_accumulation")


def mathematics_sentences(start: Mapping[str, Any], winner: Mapping[str, Any], mode: str) -> list[str]:
    """A sentence for each setting by which the winner computes something else than the start."""
    said = []
    for name in sorted(winner):
        before, after = start.get(name), winner[name]
        if before == after or name in SAME_MATHEMATICS or (name in SIZES and mode == "infer"):
            continue
        change = f"{name}={show_setting(after)} instead of {show_setting(before)}"
        if name == "precision":
            said.append(f"It changes the mathematics: {change} ({PRECISIONS.get(str(after), 'another precision')}).")
        elif name in SIZES:
            said.append(
                f"It changes how a model learns: {change}; --goal time-to-quality judges that, a rate does not."
            )
        else:
            said.append(f"It changes the mathematics: {change}.")
    return said


# A fact whose name has one of these words changes from minute to minute and explains nothing by itself.
VOLATILE = {
    "load", "uptime", "temperature", "temperatures", "free", "available", "used", "usage", "now", "current",
    "utilisation", "utilization", "draw", "processes", "pid", "pids", "time", "timestamp", "date", "throttle",
    "throttled", "throttling", "missing", "evidence", "boot", "fan", "idle", "elapsed", "reasons",
}  # fmt: skip
# Which specimen it is. Another specimen of the same kind is worth a note; its differences count themselves.
IDENTITY = {"hostname", "serial", "id", "bus", "path", "index", "minor", "address"}
# What a run sets itself, because a setting says so: it follows from the settings and is no fact of its own.
FOLLOWS = ("software.imported", "software.torch.switches", "software.torch.threads", "software.torch.interop_threads")
# Which of several alike; and the parts of the host's memory, which a virtual machine moves about.
PLACES = r"devices\.\d+\.device|host\.numa\.\d+\.memory_bytes"
ROOMS = {"devices": "machine", "host": "machine", "software": "software", "container": "container",
         "environment": "environment", "compile cache": "compile cache"}  # fmt: skip
TELLING = ("software.prony_node_source", "devices.0.name", "devices.0.uuid", "devices.0.driver", "host.cpu.model",
           "software.torch", "software.cuda", "software.python", "software.driver", "container")  # fmt: skip


@dataclass(frozen=True)
class FactDifferences:
    """Facts that differ: those that may explain a difference of rates, and those worth a note."""

    matter: list[Difference]
    noted: list[Difference]

    def groups(self) -> list[str]:
        """What differs, in a word each: machine, software, container, environment."""
        return list(dict.fromkeys(ROOMS.get(d.name.partition(".")[0], "other facts") for d in self.matter))


def fact_differences(a: Record, b: Record) -> FactDifferences:
    """Facts that differ between two records, the most telling ones first."""
    ours, theirs = dict(_flatten(rooms_of_facts(a))), dict(_flatten(rooms_of_facts(b)))
    matter: list[Difference] = []
    noted: list[Difference] = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if ours.get(name) == theirs.get(name) or _is_volatile(name):
            continue
        difference = Difference(name, ours.get(name), theirs.get(name))
        (noted if _is_note(name) else matter).append(difference)
    return FactDifferences(sorted(matter, key=_rank), sorted(noted, key=_rank))


def cache_states(records: Sequence[Record]) -> list[str]:
    """The states in which the runs found their compile cache, each once; nothing where nothing was compiled."""
    phases = [record.phases.get("cold_start") for record in records]
    states = {phase.compile_cache.state for phase in phases if phase is not None and phase.compile_cache is not None}
    return sorted(state for state in states if state in ("cold", "partly warm", "warm"))


def rooms_of_facts(record: Record) -> Mapping[str, Any]:
    """The facts of a record by their room: host, software, devices."""
    facts = record.facts
    return {
        "host": encode(facts.host), "software": encode(facts.software), "container": encode(facts.container),
        "environment": facts.environment, "source": encode(facts.source), **facts.more,
        "devices": encode(facts.devices),
    }  # fmt: skip


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted name. A list of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for position, inner in enumerate(value):
            yield from _flatten(inner, f"{name}.{position}")
    elif value not in (None, "", [], {}):
        yield name, value


def _words(name: str) -> set[str]:
    return set(re.split(r"[._\-]", name.lower()))


def _is_volatile(name: str) -> bool:
    """Never a part of the software: each is fixed while a run lasts."""
    if name.startswith("software.") and "missing" not in _words(name):
        return False
    return not name.startswith("environment.") and bool(_words(name) & VOLATILE)


def _is_note(name: str) -> bool:
    room = name.partition(".")[0]
    if room == "environment":
        return bool(_words(name) & {"id", "jobid"})
    if room == "source" or name.startswith(FOLLOWS) or re.fullmatch(PLACES, name):
        return True
    return bool(_words(name) & IDENTITY)


def _rank(difference: Difference) -> tuple[int, str]:
    for position, start in enumerate(TELLING):
        if difference.name.startswith(start):
            return position, difference.name
    return len(TELLING), difference.name


def introduce(record: Record) -> list[tuple[str, str]]:
    """The facts that a person wants first, each with a label; what is not known is left out."""
    device, host, software = record.device, record.facts.host, encode(record.facts.software)
    cpu = host.cpu or CpuFacts()
    cores = cpu.cores or cpu.threads
    lines = [
        ("device", device.name),
        ("driver", device.driver or _drivers(record.facts.software.drivers)),
        ("host", host.hostname),
        ("CPU", f"{cpu.model}, {cores} cores" if cpu.model and cores else cpu.model),
        ("system", host.os),
        ("kernel", host.kernel),
        ("torch", _version(software, "torch")),
        ("CUDA", _version(software, "cuda")),
        ("ROCm", _version(software, "hip", "rocm")),
        ("cuDNN", _version(software, "cudnn")),
        ("Python", _version(software, "python")),
        ("Prony", _version(software, "prony", "prony_node")),
        ("container", _container(encode(record.facts.container))),
    ]
    return [(label, str(text)) for label, text in lines if text]


def _drivers(drivers: Mapping[str, str] | None) -> str | None:
    if not drivers:
        return None
    return ", ".join(f"{name} {version}" for name, version in drivers.items() if version) or None


def _first(facts: Mapping[str, Any], *names: str) -> Any:
    return next((facts[name] for name in names if facts.get(name)), None)


def _version(software: Mapping[str, Any], *names: str) -> Any:
    """A version stands directly under its name, or in an object, or among the packages, or under torch."""
    places = (software, software.get("packages") or {}, software.get("torch") or {})
    for place in places:
        found = _first(place, *names) if isinstance(place, dict) else None
        if isinstance(found, dict):
            found = _first(found, "version")
        if found:
            return found
    return None


def _container(container: Mapping[str, Any]) -> str | None:
    found = _first(container, "image", "name", "runtime", "kind")
    return str(found) if found else None


# One record in short: what it learned, its energy, and the headline.


MOST_ROWS = 12


@dataclass(frozen=True)
class CurvePoint:
    """The state after an epoch: counts and times since the start, score and loss of the test split."""

    epoch: int | None
    steps: int | None
    samples: int | None
    training_s: float | None  # without evaluation
    score: float | None
    loss: float | None


@dataclass(frozen=True)
class LearningCurve:
    """A learning curve, with the target it was run for."""

    score: str  # its name: accuracy
    better: str | None  # "more" or "less"
    target: float | None
    until: str | None  # the target as it was asked for
    reached: bool
    reached_epoch: int | None
    reached_steps: int | None
    test_samples: int | None
    epochs: int | None  # at most this many were asked for
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class Quality:
    """The score that stands for a run, and how long its target took."""

    score: str
    value: float
    low: float | None
    high: float | None
    epoch: int | None  # after which it was scored
    target: float | None
    reached: bool
    time_s: float | None  # to the target


def learning_of(record: Record) -> LearningCurve | None:
    """The learning of a run, its texts fit for a line; None where it is not a run that learned."""
    stated = record.learning
    if stated is None or stated == Learning():
        return None
    score = word(stated.score) or "score"
    reached = stated.reached
    return LearningCurve(
        score=score,
        better=stated.better if stated.better in ("more", "less") else None,
        target=stated.target,
        until=word(stated.until),
        reached=reached is not None,
        reached_epoch=reached.epoch if reached else None,
        reached_steps=reached.steps if reached else None,
        test_samples=stated.test_samples,
        epochs=stated.epochs,
        curve=tuple(_point(epoch, score) for epoch in stated.curve or () if epoch != LearnedEpoch()),
    )


def quality_of(record: Record) -> Quality | None:
    """The quality of a run as its metrics state it; None where it has none."""
    metric = record.metric("quality")
    if metric is None or metric.value is None:
        return None
    learning = learning_of(record)
    curve = learning.curve if learning else ()
    return Quality(
        score=word(metric.unit) or "score",
        value=metric.value,
        low=metric.low,
        high=metric.high,
        epoch=next((point.epoch for point in reversed(curve) if point.score == metric.value), None),
        target=learning.target if learning else None,
        reached=learning.reached if learning else False,
        time_s=record.value("time_to_quality"),
    )


def thinned(learning: LearningCurve, most: int = MOST_ROWS) -> list[CurvePoint]:
    """At most so many points, evenly spread; the first, the last and the one of the target are among them."""
    curve = learning.curve
    if len(curve) <= most:
        return list(curve)
    kept = {round(place * (len(curve) - 1) / (most - 1)) for place in range(most)}
    marked = next((place for place, point in enumerate(curve) if is_reached(learning, point)), None)
    if marked is not None and marked not in kept:
        inner = kept - {0, len(curve) - 1}
        kept.discard(min(inner, key=lambda place: abs(place - marked)))
        kept.add(marked)
    return [curve[place] for place in sorted(kept)]


def is_reached(learning: LearningCurve, point: CurvePoint) -> bool:
    """Whether the target was first reached at this point."""
    return learning.reached_epoch is not None and point.epoch == learning.reached_epoch


def _point(epoch: LearnedEpoch, score: str) -> CurvePoint:
    return CurvePoint(epoch.epoch, epoch.steps, epoch.samples, epoch.training_s, epoch.score(score), epoch.loss)


NO_RATES = Rates()
NOT_MEASURED = "not measured"


def energy_lines(record: Record, rates: Rates = NO_RATES) -> list[tuple[str, str]]:
    """A label and a sentence for each part that was sampled, the node, and what a person should know of them."""
    detail = record.energy
    if detail is None:
        return []
    lines = [(_on_host(part.label or "part", part.host), _part(part)) for part in detail.parts]
    lines += [(_on_host(f"node {one.node}", one.host), _share(one)) for one in detail.nodes or ()]
    node = detail.node
    if node is not None and node.energy_j is not None:
        mean = "" if node.power_w is None else f", {node.power_w:,.0f} W mean"
        lines.append(("all nodes" if detail.nodes else "node", f"{_joules(node.energy_j)}{mean} ({node.how})"))
        lines += _cost(node.energy_j, rates)
    lines += [("note", note) for note in detail.notes]
    return lines


def _cost(energy_j: float, rates: Rates) -> list[tuple[str, str]]:
    """Carbon and money of the node's energy in the window, where a site gave its numbers."""
    lines = []
    if rates.carbon is not None:
        lines.append(("carbon", f"{carbon_g(energy_j, rates.carbon):.3g} g CO2e at {rates.carbon}"))
    if rates.price is not None:
        lines.append(
            ("price", f"{price(energy_j, rates.price):.3g} {rates.price.unit}".rstrip() + f" at {rates.price}")
        )
    return lines


def _on_host(label: str, host: str | None) -> str:
    """A part or node of a run on several nodes is named with its host."""
    return label if host is None else f"{label} ({host})"


def _share(node: NodeShare) -> str:
    """What the devices of one of several nodes used; a part of a sum only where there is one."""
    if node.energy_j is None:
        return f"no figure: {node.reason}"
    share = "" if node.share is None else f", {100 * node.share:.3g} % of all"
    return f"devices {_joules(node.energy_j)}{share}"


def _part(part: EnergyPart) -> str:
    idle = f", {part.idle_power_w:,.0f} W idle before the run" if part.idle_power_w is not None else ""
    if part.energy_j is None:
        return f"no figure: {part.reason}{idle}"
    share = (part.uncertainty_j or 0.0) / part.energy_j if part.energy_j else 0.0
    start_s, end_s = part.window_s or (0.0, 0.0)
    mean = f" {part.power_w:,.0f} W mean" if part.power_w is not None else ""
    peak = f", {part.power_peak_w:,.0f} W peak" if part.power_peak_w is not None else ""
    calibration = f", calibration ± {100 * part.calibration:.2g} %" if part.calibration else ""
    what = "ticks" if part.method == "counter" else "readings"
    source = (
        f"{(part.sensor or '').partition(' ')[0]} ({part.method}, scope {part.scope}, evidence: {part.evidence}),"
        f" {part.readings} {what} of {1e3 * (part.period_s or 0.0):.0f} ms{calibration}"
    )
    return f"{_joules(part.energy_j)} ± {100 * share:.2g} % in {end_s - start_s:.2f} s,{mean}{peak}{idle}; {source}"


def _joules(energy_j: float) -> str:
    return f"{energy_j:,.0f} J ({energy_j / JOULES_A_WH:.3g} Wh)"


@dataclass(frozen=True)
class Headline:
    """A headline as data; words and digits are the reader's business."""

    run_id: str
    workload: str
    status: str
    rate: float | None
    low: float | None
    high: float | None
    unit: str | None  # of the rate: images/s
    interval: str | None  # what low and high cover: "within one run"
    reason: str | None  # why there is no rate
    failure_kind: str | None
    failure_message: str | None
    worst: str  # level of the worst check
    worst_checks: tuple[str, ...]  # the checks that are that bad; none when all pass
    quality: Quality | None = None  # of a run that learned from a data set
    unchecked: int = 0  # checks that could not be judged here
    window_s: float | None = None  # what the rate and its interval were measured in

    @property
    def relative_half_width(self) -> float | None:
        """The wider side of the interval over the rate."""
        if self.rate is None or self.low is None or self.high is None or self.rate <= 0.0:
            return None
        return max(self.high - self.rate, self.rate - self.low) / self.rate


def how_changed(record: Record) -> str:
    """Of a record with that failed check, what is to be said."""
    return next(check.message for check in reversed(record.checks) if check.name == UNCHANGED)


def checks_without_places(record: Record) -> list[Check]:
    """The checks of a record for a page that is handed on: without the folder that the run lies in here."""
    message = CHANGED_AFTER.format(f"prony verify {shlex.quote(record.id)}")
    return [
        replace(check, message=message) if check.name == UNCHANGED and check.level == "fail" else check
        for check in record.checks
    ]


def unchecked(record: Record) -> int:
    """How many checks could not be judged, which is no doubt about the run."""
    return sum(check.level == "unknown" for check in record.checks)


def no_doubts(count: int | None) -> str:
    """Of a run in which nothing is doubted, though so many things could not be checked; None: a few, uncounted."""
    if count == 0:
        return "no doubts"
    things = "some things" if count is None else "1 thing" if count == 1 else f"{count} things"
    return f"no doubts ({things} could not be checked)"


def headline(record: Record) -> Headline:
    """The headline of a valid record."""
    rate = record.metrics.get("throughput") or Metric(None, reason=NOT_MEASURED)
    if rate.value is not None and not is_possible_rate(rate.value, rate.low, rate.high):
        rate = Metric(None, unit=rate.unit, reason=f"the one in the record cannot be true (check {PLAUSIBLE})")
    worst, failure = record.worst_level, record.failure
    named = tuple(check.name for check in record.checks if check.level == worst)
    return Headline(
        run_id=record.id,
        workload=record.trial.workload,
        status=record.status,
        rate=rate.value,
        low=rate.low,
        high=rate.high,
        unit=rate.unit,
        interval=rate.interval,
        reason=rate.reason,
        failure_kind=failure.kind if failure else None,
        failure_message=failure.message if failure else None,
        worst=worst,
        worst_checks=named if worst != LEVELS[0] else (),
        quality=quality_of(record),
        unchecked=unchecked(record),
        window_s=record.window_s,
    )
