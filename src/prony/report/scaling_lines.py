"""A scaling series as texts: for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from prony.analysis.scaling import Point, Scaling
from prony.analysis.scaling_alarm import Alarm
from prony.analysis.scaling_law import WEAK, Figure, Fit, HeldOut
from prony.analysis.scaling_losses import COMMUNICATION
from prony.analysis.variation import OWN
from prony.report.numbers import NOTHING, format_bytes, format_number, format_rate, format_share, format_si
from prony_node.contract.trial import Trial

GAINED = ("devices", "batch per device", "rate, 95 %", "speedup, 95 %", "efficiency, 95 %")
THROUGH = 1e-6  # a law that misses its points by less goes through them
LOST = ("devices", "lost", "communication", "input", "imbalance", "rest")


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


def gained_row(point: Point) -> list[str]:
    rate = format_rate(point.side.rate, point.side.unit, point.side.low, point.side.high)
    batch = NOTHING if point.batch is None else f"{point.batch:,}"
    if point.devices == 1:
        return [_devices(point), batch, rate, "1", "100 %"]
    return [_devices(point), batch, rate, _figure(point.speedup), _share(point.efficiency)]


def lost_row(point: Point) -> list[str] | None:
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


def _devices(point: Point) -> str:
    return str(point.devices) if point.nodes == 1 else f"{point.devices} ({point.nodes} nodes)"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return NOTHING
    ends = ""
    if figure.low is not None and figure.high is not None:
        ends = f" ({format_number(figure.low)} to {format_number(figure.high)})"
    return f"{format_number(figure.value)}{ends}"


def _share(figure: Figure | None, digits: int = 1) -> str:
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


def _link(point: Point) -> list[str]:
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


def _alarm(alarm: Alarm) -> str:
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
    tested = missed if fit.spare or fit.misfit > THROUGH else "it goes through every point, untested"
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
