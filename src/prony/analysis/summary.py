"""One record in short: what it learned, its energy, and the headline."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from prony.analysis.settings import word
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
