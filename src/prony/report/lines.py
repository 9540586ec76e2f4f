"""Records and series of records as lines and tables of text, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prony.analysis.scaling import COMMUNICATION, Scaling, ScalingPoint, SuperlinearEfficiency
from prony.analysis.scaling_series import WEAK, Fit, HeldOut, ValueInterval
from prony.analysis.summary import CurvePoint, LearningCurve, count, is_reached, learning_of, number, thinned, word
from prony.analysis.variation import OWN, Group, Spread
from prony.report.numbers import (
    NOTHING,
    format_bytes,
    format_half_width,
    format_metric,
    format_number,
    format_rate,
    format_seconds,
    format_share,
    format_si,
)
from prony.report.series import Sweep, SweepPoint
from prony_node.contract.errors import counted
from prony_node.contract.metrics import METRICS
from prony_node.contract.record import DataUsed, MessageTime, Record, StagedFiles, WorkDone
from prony_node.contract.trial import Trial
from prony_node.contract.typed import JsonObject

LONGEST_REASON = 200


def batch_lines(record: Record) -> list[tuple[str, str]]:
    """A batch and what became of it, in the order of the tries; none where no batch was looked for."""
    tries = record.auto_batch
    lines = []
    for tried in tries if isinstance(tries, list) else []:
        batch = count(tried.get("batch")) if isinstance(tried, dict) else None
        if batch is None:
            continue
        held, room = number(tried.get("memory")), number(tried.get("room"))
        if tried.get("fits") is not True:
            reason = word(tried.get("reason"), LONGEST_REASON)
            lines.append((f"{batch:,}", "does not fit" + (f": {reason}" if reason else "")))
        elif held is None or room is None:
            lines.append((f"{batch:,}", "fits"))
        else:
            lines.append((f"{batch:,}", f"fits: {format_bytes(held)} of {format_bytes(room)}"))
    return lines


LONGEST_BINDING = 300


def binding_lines(record: Record) -> list[tuple[str, str]]:
    """A rank and its cores and memory, or why it has none of its own; ranks with the same stand together."""
    stated = record.binding
    said: dict[str, list[str]] = {}
    for one in stated if isinstance(stated, list) else []:
        rank = count(one.get("rank")) if isinstance(one, dict) else None
        if rank is not None:
            said.setdefault(_text(one), []).append(str(rank))
    return [(f"rank {', '.join(ranks)}", text) for text, ranks in said.items()]


def _text(one: JsonObject) -> str:
    cores, memory, reason = (word(one.get(name), LONGEST_BINDING) for name in ("cores", "memory", "reason"))
    parts = [f"cores {cores}" if cores else "", f"memory {memory}" if memory else "", reason or ""]
    return "; ".join(filter(None, parts)) or "not said"


LONGEST_PATH = 400
HELD = {"device": "in device memory", "memory": "in host memory", "files": "read from its files"}
MOST_FACTS = 8  # of a generated set


def data_lines(record: Record) -> list[tuple[str, str]]:
    """A label and a text for each part that is known; none where the run had no data set and one shape of batch."""
    data, work = record.data or DataUsed(), record.work
    lines = [
        ("set", _which(data)),
        ("samples", _data_size(data)),
        ("held", HELD.get(str(data.held), word(data.held))),
        ("decoded", _decoded(data.decoded_on_device)),
        ("fingerprint", word(data.fingerprint)),
        ("staged", _staged(data.staged)),
        ("generated", _generated(data.generated or {})),
        ("images", _shapes(work)),
        ("waits", _waits(work)),
    ]
    return [(label, text) for label, text in lines if text]


def _which(data: DataUsed) -> str:
    kind, folder, source = word(data.kind), _path(data.folder), _path(data.source)
    place = f"in {folder}" if folder else ""
    asked = f"requested as {source}" if source and source != folder else ""
    return ", ".join(part for part in (" ".join(filter(None, (kind, place))), asked) if part)


def _data_size(data: DataUsed) -> str:
    counts = ((data.samples, "to train"), (data.test_samples, "to test"), (data.classes, "classes"))
    parts = [f"{found:,} {words}" for found, words in counts if found is not None]
    return ", ".join(parts + ([format_bytes(data.bytes)] if data.bytes is not None else []))


def _shapes(work: WorkDone) -> str:
    """How large images were and how many boxes they had, where that differs from batch to batch."""
    parts = []
    for name, unit in (("height", "high"), ("width", "wide"), ("boxes", "boxes")):
        spread = (work.shapes or {}).get(name)
        stated = spread if isinstance(spread, dict) else {}
        mean, low, high = (number(stated.get(key)) for key in ("mean", "p5", "p95"))
        if mean is not None and low is not None and high is not None:
            parts.append(f"{mean:.4g} {unit} ({low:g} to {high:g})")
    return ", ".join(parts) + (", on average and nine in ten of them" if parts else "")


def _waits(work: WorkDone) -> str:
    """For the device, of the workload itself; what reads a loss or a count has to."""
    per_step = work.own_synchronisations_per_step
    return "" if per_step is None else f"{per_step:.4g} per step for the device, the workload's own"


def _decoded(by_device: float | None) -> str:
    """How decode=both divided the last batches."""
    return "" if by_device is None else f"{by_device:.0%} by the device, the rest by workers"


def _staged(staged: StagedFiles | None) -> str:
    if staged is None:
        return ""
    files, size, copied = staged.files, staged.bytes, staged.copied_bytes
    folder, seconds = _path(staged.folder), staged.seconds
    parts = [f"to {folder}"] if folder else []
    parts += [counted(round(files), "file")] if files is not None else []
    parts += [format_bytes(size)] if size is not None else []
    parts += [f"{format_bytes(copied)} of it copied now"] if copied is not None else []
    return ", ".join(parts) + (f" in {format_seconds(seconds)}" if seconds is not None else "")


def _generated(generated: JsonObject) -> str:
    """What a manifest says of itself, whatever it says; a checksum of a list is for no reader."""
    facts = [(name, _plain(value)) for name, value in generated.items() if not str(name).endswith("sha256")]
    return ", ".join(f"{word(str(name))} {text}" for name, text in facts[:MOST_FACTS] if text)


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return "on" if value else "off"
    found = number(value)
    return word(value) if found is None else f"{found:,.10g}"


def _path(value: Any) -> str | None:
    return word(value, LONGEST_PATH)


REACHED = "target reached"


@dataclass(frozen=True)
class CurveTable:
    """A learning curve for a reader: texts, with the row in which the target was reached."""

    header: list[str]
    rows: list[list[str]]
    reached: int | None  # which row; None where none is
    left_out: int  # epochs that are not among the rows


def learning_lines(record: Record) -> list[tuple[str, str]]:
    """A label and a sentence for what was scored and for the target; none where nothing was learned."""
    learning = learning_of(record)
    if learning is None:
        return []
    of = f", {learning.test_samples:,} samples" if learning.test_samples else ""
    return [("score", f"{learning.score} on the test split{of}, after every epoch"), ("target", _target(learning))]


def curve_table(record: Record) -> CurveTable | None:
    """The curve, thinned to a dozen rows; None where there is none."""
    learning = learning_of(record)
    if learning is None or not learning.curve:
        return None
    points = thinned(learning)
    with_loss = learning.score != "loss" and any(point.loss is not None for point in learning.curve)
    marked = [place for place, point in enumerate(points) if is_reached(learning, point)]
    return CurveTable(
        header=["epoch", "steps", "training time", learning.score, *(["loss"] if with_loss else [])],
        rows=[_curve_row(point, with_loss) for point in points],
        reached=marked[0] if marked else None,
        left_out=len(learning.curve) - len(points),
    )


def _target(learning: LearningCurve) -> str:
    made = learning.curve[-1].epoch if learning.curve else None
    epochs = made if made is not None else learning.epochs
    length = "" if epochs is None else counted(epochs, "epoch")
    if learning.target is None:
        return f"none: trained for {length}" if length else "none"
    asked = learning.until or f"{learning.score} {learning.target:.6g}"
    if not learning.reached:
        return f"{asked}, not reached" + (f" in {length}" if length else "")
    epoch, steps = learning.reached_epoch, learning.reached_steps
    at = "" if epoch is None else f" after epoch {epoch:,}"
    return f"{asked}, reached{at}" + ("" if steps is None else f", {steps:,} steps")


def _curve_row(point: CurvePoint, with_loss: bool) -> list[str]:
    cells = [
        _count_text(point.epoch),
        _count_text(point.steps),
        format_seconds(point.training_s),
        _number_text(point.score),
    ]
    return [*cells, _number_text(point.loss)] if with_loss else cells


def _count_text(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _number_text(value: float | None) -> str:
    return NOTHING if value is None else format_number(value)


TOGETHER_FROM = 3


@dataclass(frozen=True)
class MetricLine:
    name: str
    value: str
    source: str = ""
    help: str = ""


def metric_lines(record: Record) -> list[MetricLine]:
    """In the order of the vocabulary, what was measured first."""
    metrics, window_s = record.metrics, record.window_s
    names = [name for name in METRICS if name in metrics] + [name for name in metrics if name not in METRICS]
    absent: dict[str, list[str]] = {}
    for name in names:
        if reason := metrics[name].reason if metrics[name].value is None else None:
            absent.setdefault(reason, []).append(name)
    grouped = {name for those in absent.values() if len(those) >= TOGETHER_FROM for name in those}
    lines = [
        MetricLine(
            name,
            format_metric(name, metrics[name], window_s),
            metrics[name].source or "",
            METRICS[name].help if name in METRICS else "",
        )
        for name in names
        if name not in grouped
    ]
    for reason, those in absent.items():
        if len(those) >= TOGETHER_FROM:
            lines.append(MetricLine("not measured", f"{', '.join(those)}: {reason}"))
    return lines


COLLECTIVE_HEADER = ["message", "time, 95 % interval", "algorithm bandwidth", "bus bandwidth"]
GB, KIB = 1e9, 1024.0
LONGEST_NOTE = 300


@dataclass(frozen=True)
class CollectiveTable:
    """Texts for a reader: a row a message size."""

    header: list[str]
    rows: list[list[str]]


def collective_lines(record: Record) -> list[tuple[str, str]]:
    """Between whom, by what, and by which factor; none where the run was of another kind."""
    stated = record.collective_curve
    if stated is None:
        return []
    lines = [
        ("between", f"{stated.ranks:,} ranks" if stated.ranks else ""),
        ("library", word(stated.backend)),
        ("bus bandwidth", f"{stated.factor:.4g} x size / time" if stated.factor is not None else ""),
        ("note", word(stated.note, LONGEST_NOTE)),
    ]
    return [(label, text) for label, text in lines if text]


def collective_table(record: Record) -> CollectiveTable | None:
    """A row a size; None where there is no curve."""
    rows = [_message_row(point) for point in _curve(record)]
    return CollectiveTable(COLLECTIVE_HEADER, rows) if rows else None


def collective_plot(record: Record) -> Sweep | None:
    """Bus bandwidth over the message; None where fewer than two sizes have one."""
    points = []
    for point in _curve(record):
        if point.size_bytes and point.bus_bandwidth is not None:
            ends = [None if end is None else end / GB for end in (point.bus_bandwidth_low, point.bus_bandwidth_high)]
            points.append(SweepPoint(point.size_bytes / KIB, None, point.bus_bandwidth / GB, ends[0], ends[1]))
    if len(points) < 2:
        return None
    return Sweep(
        workload=record.trial.workload,
        metric="bus_bandwidth",
        unit="bus bandwidth, in GB/s",
        x_name="message, in KiB",
        x_values=[],
        colour_name=None,
        colour_values=[],
        numeric=True,
        logarithmic=True,
        points=points,
        missing=0,
    )


def _curve(record: Record) -> list[MessageTime]:
    stated = record.collective_curve
    return [point for point in (stated.curve if stated is not None else None) or () if count(point.size_bytes)]


def _message_size(size: int) -> str:
    """Without the zeros of a round number: 16 MiB."""
    digits, _, unit = format_bytes(size).partition(" ")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {unit}"


def _message_row(point: MessageTime) -> list[str]:
    size, seconds = _message_size(point.size_bytes or 0), point.time_s
    if seconds is None or seconds <= 0.0:
        return [size, word(point.reason, LONGEST_NOTE) or NOTHING, NOTHING, NOTHING]
    return [
        size,
        format_seconds(seconds) + format_half_width(seconds, point.time_low_s, point.time_high_s),
        format_rate(point.algorithm_bandwidth, "B/s"),
        format_rate(point.bus_bandwidth, "B/s"),
    ]


WIDEST = "standard deviation"
SPREAD_COLUMNS = ("mean", "95 % of the mean", WIDEST, "least to most")
SEEDS_NAMED = 10  # seeds


def spread_title(group: Group) -> str:
    """Which runs these are: wideresnet batch_size=32: 3 seeds (0, 1, 2)."""
    trial, runs, seeds = Trial(group.workload, group.settings), len(group.records), group.seeds
    if len(seeds) == 1:
        learned = any(spread.name == "quality" for spread in group.spreads)
        seed = f" of seed {seeds[0]}" if learned else ""
        return f"{trial}: {runs} runs{seed} in fresh processes"
    named = ", ".join(map(str, seeds)) if len(seeds) <= SEEDS_NAMED else f"{seeds[0]} to {seeds[-1]}"
    more = f", {runs} runs; those of a seed are averaged first" if runs > len(seeds) else ""
    return f"{trial}: {len(seeds)} seeds ({named}){more}"


def spread_row(spread: Spread) -> list[str]:
    """A metric with its unit, then a cell for each column, then of how many seeds or runs."""
    label = spread.unit if spread.name == "quality" else f"{spread.name.replace('_', ' ')}, {spread.unit}"
    deviation = NOTHING if spread.deviation is None else format_number(spread.deviation, 2)
    interval, edges = _range(spread.low, spread.high), _range(spread.least, spread.most)
    return [label, format_number(spread.mean), interval, deviation, edges, str(spread.count)]


def spread_notes(group: Group) -> list[str]:
    """What the reader of a mean must know: who is not in it."""
    missed = len(group.records) - group.reached
    notes = []
    if group.until and missed:
        notes.append(
            f"{missed} of {len(group.records)} runs did not reach {group.until}: "
            "time and energy to it are of the others alone, which flatters both"
        )
    if group.left_out:
        notes.append(
            f"{group.left_out} more failed or ended early and {'is' if group.left_out == 1 else 'are'} left out"
        )
    return notes


def _range(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{format_number(low)} to {format_number(high)}"


GAINED_COLUMNS = ("devices", "batch per device", "rate, 95 %", "speedup, 95 %", "efficiency, 95 %")
EXACT_FIT = 1e-6  # a law that misses its points by less goes through them
LOST_COLUMNS = ("devices", "lost", "communication", "input", "imbalance", "rest")


@dataclass(frozen=True)
class Lines:
    """What a series says, the alarms first; each a sentence."""

    alarms: list[str]
    notes: list[str]


def scaling_title(found: Scaling) -> str:
    """resnet50 precision=bf16, weak scaling: 64 samples per step and device."""
    trial = Trial(found.workload, found.settings)
    where = "and device" if found.kind == WEAK else "on all devices together"
    kept = "" if found.batch is None else f": {found.batch:,} samples per step {where}"
    return f"{trial}, {found.kind} scaling{kept}"


def gained_row(point: ScalingPoint) -> list[str]:
    rate = format_rate(point.side.rate, point.side.unit, point.side.low, point.side.high)
    batch = NOTHING if point.batch is None else f"{point.batch:,}"
    if point.devices == 1:
        return [_devices(point), batch, rate, "1", "100 %"]
    return [_devices(point), batch, rate, _figure(point.speedup), _share(point.efficiency)]


def lost_row(point: ScalingPoint) -> list[str] | None:
    """Where the time of several devices went; None where nothing is known of it."""
    if point.losses is None:
        return None
    return [_devices(point), _share(point.losses.lost), *(_share(part.share) for part in point.losses.parts)]


def scaling_lines(found: Scaling) -> Lines:
    """The sentences under the tables."""
    notes = [f"A device is {found.device}."] if found.device else []
    notes += _coverage(found)
    notes += [f"No speedup on {point.devices}: {point.reason}." for point in found.points if point.reason]
    notes += _unmeasured(found)
    notes += _wire(found)
    notes += [f"On {p.devices}: {doubt}." for p in found.points if p.losses for doubt in p.losses.doubts]
    notes += [f"Left out: {why}." for why in found.left_out]
    notes += _fit(found.fit) if found.fit else _no_fit(found)
    if found.fit and found.fit.predictions and all(point.nodes == 1 for point in found.points):
        notes.append("Every count was run on one node: what a network between nodes costs is not in the prediction.")
    return Lines([*_confounded(found), *map(_alarm, found.alarms)], [*_unchanged(found), *notes])


def _devices(point: ScalingPoint) -> str:
    return str(point.devices) if point.nodes == 1 else f"{point.devices} ({point.nodes} nodes)"


def _figure(figure: ValueInterval | None) -> str:
    if figure is None:
        return NOTHING
    ends = ""
    if figure.low is not None and figure.high is not None:
        ends = f" ({format_number(figure.low)} to {format_number(figure.high)})"
    return f"{format_number(figure.value)}{ends}"


def _share(figure: ValueInterval | None, digits: int = 1) -> str:
    """A share in percent to so many decimals, its interval likewise: 92.4 % (91.5 to 93.3)."""
    if figure is None:
        return NOTHING
    ends = ""
    if figure.low is not None and figure.high is not None:
        ends = f" ({100 * figure.low:.{digits}f} to {100 * figure.high:.{digits}f})"
    return f"{100 * figure.value:.{digits}f} %{ends}"


def _coverage(found: Scaling) -> list[str]:
    covers = list(dict.fromkeys(point.side.interval for point in found.points if point.side.rate is not None))
    if not covers or covers == ["none"]:
        return ["No rate has an interval, so nothing says what is chance."]
    said = " or ".join(cover for cover in covers if cover != "none")
    borrowed = any(point.side.variation and point.side.variation.kind != OWN for point in found.points)
    more = "; --repeats 3 would measure the variation at every count" if borrowed else ""
    return [f"Intervals are 95 % CIs that include the variation between runs ({said}){more}."]


def _unmeasured(found: Scaling) -> list[str]:
    """Parts that are in the rest, each reason once."""
    reasons: dict[str, list[str]] = {}
    for point in found.points:
        for part in point.losses.parts if point.losses else []:
            if part.share is None:
                names = reasons.setdefault(str(part.reason), [])
                names += [part.name] if part.name not in names else []
    return [f"In the rest, since it was not measured: {' and '.join(names)} ({why})." for why, names in reasons.items()]


def _wire(found: Scaling) -> list[str]:
    """What the largest count sends, the bandwidth that this takes, and what the machine's links can do.

    The exchange takes as long as its exposed part at least and as the step at most: how much is hidden is not seen.
    """
    sending = [point for point in found.points if point.sent_bytes and point.step_s]
    if not sending:
        return []
    point = sending[-1]
    sent, step_s = float(point.sent_bytes or 0.0), float(point.step_s or 1.0)
    parts = point.losses.parts if point.losses else []
    exposed = next((part.share.value for part in parts if part.name == COMMUNICATION and part.share), 0.0)
    bounds = f"at least {format_si(sent / step_s, 'B/s')}"
    if exposed > 0.0:
        bounds += f", and {format_si(sent / (step_s * exposed), 'B/s')} were only its exposed part the exchange"
    said = [f"On {_devices(point)} each device sends {format_bytes(sent)} per step: a bus bandwidth of {bounds}."]
    return said + _link(point)


def _link(point: ScalingPoint) -> list[str]:
    """What the machine can do, as far as a collective was run."""
    if point.link is not None:
        reached = format_si(point.link.bandwidth.value, "B/s")
        return [f"{point.link.operation} between as many reached {reached} here ({point.link.run})."]
    if point.operation is None:
        return []
    nodes = "" if point.nodes == 1 else f" nodes={point.nodes}"
    asked = f"prony run {point.operation} devices={point.devices}{nodes}"
    return [f"What the links can do was not measured; `{asked}` would."]


def _confounded(found: Scaling) -> list[str]:
    return [f"Not only the devices changed: {change.sentence}." for change in found.changes]


def _unchanged(found: Scaling) -> list[str]:
    compared = [point for point in found.points if point.speedup is not None]
    if found.changes or len(compared) < 2:
        return []
    return ["Nothing else changed: settings, machine and software are those of the run on one device at every count."]


def _alarm(alarm: SuperlinearEfficiency) -> str:
    above = f"{_share(alarm.efficiency)} on {alarm.devices} devices"
    return f"Alarm: {above} is more than there is to gain. Probable cause: {'; or '.join(alarm.causes)}."


def _no_fit(found: Scaling) -> list[str]:
    if not any(alarm.shown for alarm in found.alarms):
        return []
    return ["No fit and no prediction: more than 100 % is shown, which no law of scaling has."]


def _fit(fit: Fit) -> list[str]:
    parts = f"{_share(fit.sigma, 2)} of one device's step does not shrink"
    if fit.kappa is not None:
        parts += f", and each further device adds {_share(fit.kappa, 2)} of it"
    missed = f"it misses the speedups by {100 * fit.misfit:.1f} %"
    tested = missed if fit.spare or fit.misfit > EXACT_FIT else "it goes through every point, untested"
    said = [f"Fit, {fit.name}: {parts}; {tested}."]
    if fit.peak is not None:
        said.append(f"By the fit the rate is highest on {fit.peak:,.0f} devices.")
    ahead = [f"{one.devices}: {_figure(one.speedup)}, {_share(one.efficiency)}" for one in fit.predictions]
    said += [f"Predicted speedup and efficiency on {'; on '.join(ahead)}."] if ahead else []
    return said + (_held_out(fit.held_out) if fit.held_out else [])


def _held_out(held: HeldOut) -> list[str]:
    *others, last = map(str, [1, *held.fitted_to])
    way = "too high" if held.error > 0.0 else "too low"
    missed = "" if held.covered is not False else "; the intervals do not meet, so the law does not hold up to there"
    return [
        f"Held out: from {', '.join(others)} and {last} alone it has {_figure(held.predicted)} on {held.devices}, "
        f"measured {format_number(held.measured)}: {format_share(abs(held.error), 2)} {way}{missed}."
    ]
