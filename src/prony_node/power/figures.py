"""The energy of each part and of the node, nothing counted twice, with the checks of these figures.

`span_energy` is where a run, `prony power` and `measure()` all begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from prony_node.contract.record import Check, EnergyBeside, EnergyPart, Level, NodeEnergy
from prony_node.contract.typed import overlaid, stated
from prony_node.power.recording import Recording, Trace
from prony_node.power.sensor import Sensor
from prony_node.power.window import NoEnergy, Trend, WindowEnergy, energy_of, integrated, trend_of

MEASURED = "measured"
LOWER_BOUND = "sum of devices, a lower bound"
PLATFORM = "psys"
IDLE_AT_LEAST_S = 1.0


@dataclass(frozen=True)
class PartEnergy:
    """The energy of one part, and what stands beside it."""

    part: str
    scope: str
    label: str
    figure: WindowEnergy | None
    reason: str = ""  # why there is no figure
    beside: WindowEnergy | None = None  # the same window by another way
    peak_w: float | None = None
    peak_sensor: str = ""
    thirds_w: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()  # of its sensors, within the window
    trend: Trend | None = None  # None: too few readings for one

    @property
    def difference(self) -> float | None:
        """How far the other way is off, relative to the figure."""
        if self.figure is None or self.beside is None or self.figure.energy_j <= 0:
            return None
        return self.beside.energy_j / self.figure.energy_j - 1.0

    @property
    def allowed(self) -> float | None:
        """How far it may be off by the uncertainties of both."""
        if self.figure is None or self.beside is None or self.figure.energy_j <= 0:
            return None
        return math.hypot(self.figure.uncertainty_j, self.beside.uncertainty_j) / self.figure.energy_j


@dataclass(frozen=True)
class MeasuredNode:
    """The node: one sensor that measures all of it, or the sum of what was measured of it."""

    how: str
    energy_j: float
    uncertainty_j: float
    seconds: float
    power_w: float
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SpanEnergy:
    """Everything that a recording tells of a time span."""

    recording: Recording
    parts: list[PartEnergy]
    node: MeasuredNode | None
    idle: dict[str, tuple[float | None, str]]  # W by part, or why not

    @property
    def sensors(self) -> list[Sensor]:
        return [trace.sensor for trace in self.recording.traces]

    @property
    def notes(self) -> list[str]:
        return self.recording.about.get("notes") or []

    def checks_of_part(self, part: PartEnergy) -> list[Check]:
        limits_w = self.recording.about.get("limits_w") or {}
        return part_checks(part, limits_w.get(part.part))

    def checks_of_node(self) -> list[Check]:
        return node_checks(self.node, self.parts, self.sensors)

    def recorded_part(self, part: PartEnergy) -> EnergyPart:
        return recorded_part(part, self.idle[part.part])

    def recorded_node(self) -> NodeEnergy:
        return recorded_node(self.node, self.recording)


def span_energy(recording: Recording, start_s: float, end_s: float, idle_before_s: float | None = None) -> SpanEnergy:
    """The energy between two instants, and the power of each part before `idle_before_s` (else the start)."""
    parts = part_energies(recording, start_s, end_s)
    before_s = start_s if idle_before_s is None else idle_before_s
    idle = {part.part: idle_power(recording, part.part, before_s) for part in parts}
    return SpanEnergy(recording, parts, node_energy(parts, [trace.sensor for trace in recording.traces]), idle)


def part_energies(recording: Recording, start_s: float, end_s: float) -> list[PartEnergy]:
    """Every part of the recording, in its order."""
    parts = dict.fromkeys(trace.sensor.part for trace in recording.traces)
    return [part_energy(recording.of_part(part), start_s, end_s) for part in parts]


def part_energy(traces: list[Trace], start_s: float, end_s: float) -> PartEnergy:
    """The best figure that these traces of one part give: a counter before an integral."""
    first = traces[0].sensor
    reasons: list[str] = []
    counted: list[WindowEnergy] = []
    summed: list[WindowEnergy] = []
    for trace in traces:
        try:
            found = energy_of(trace, start_s, end_s)
        except NoEnergy as no:
            reasons.append(f"{trace.sensor.id.partition(' ')[0]}: {no}")
            continue
        (counted if found.method == "counter" else summed).append(found)
    best = min(counted, key=lambda found: found.uncertainty_j, default=None) or _surest(summed)
    notes = tuple(
        f"{trace.sensor.id.partition(' ')[0]}: {note}"
        for trace in traces
        for at_s, note in trace.notes
        if start_s <= at_s <= end_s
    )
    if best is None:
        lost = [note for trace in traces for _, note in trace.notes]
        why = "; ".join([*reasons, *lost[-1:]]) or "no sensor of it gave a reading"
        return PartEnergy(first.part, first.scope, _part_label(first), None, why, notes=notes)
    trace = next(trace for trace in traces if trace.sensor == best.sensor)
    peak_w, peak_sensor = _peak(traces, best.start_s, best.end_s)
    return PartEnergy(
        part=best.sensor.part,
        scope=best.sensor.scope,
        label=_part_label(best.sensor),
        figure=best,
        beside=_beside(traces, best),
        peak_w=peak_w,
        peak_sensor=peak_sensor,
        thirds_w=_thirds(trace, best),
        notes=notes,
        trend=trend_of(trace, best),
    )


def _part_label(sensor: Sensor) -> str:
    """What the part is called: a sensor's label without what it says of the sensor."""
    return sensor.label.partition(",")[0]


def _beside(traces: list[Trace], best: WindowEnergy) -> WindowEnergy | None:
    """Power readings integrated between the same two instants."""
    found = []
    for trace in traces:
        if trace.sensor.kind == "counter" or trace.sensor == best.sensor:
            continue
        try:
            found.append(integrated(trace, best.start_s, best.end_s))
        except NoEnergy:
            continue
    return _surest(found)


def _surest(found: list[WindowEnergy]) -> WindowEnergy | None:
    """The integral to trust: of a sensor that looks all the time, and often; a slow average hides its own error."""
    return min(found, key=lambda one: (one.sensor.seen_share < 1.0, one.period_s, one.uncertainty_j), default=None)


ORDER = {"instantaneous": 0, "average": 1, "model": 2}  # of sensors of power, the quickest first


def quickest_first(traces: list[Trace]) -> list[Trace]:
    """The traces of power, that of the quickest sensor first; counters are left out."""
    able = [trace for trace in traces if trace.sensor.kind in ORDER]
    return sorted(able, key=lambda trace: (ORDER[trace.sensor.kind], trace.sensor.period_s or math.inf))


def _peak(traces: list[Trace], start_s: float, end_s: float) -> tuple[float | None, str]:
    """The highest reading of the quickest power sensor; a counter alone tells none."""
    for trace in quickest_first(traces):
        values = [r.value for r in trace.readings if start_s <= r.after_s <= end_s]
        if values:
            return max(values), trace.sensor.id
    return None, ""


def _thirds(trace: Trace, best: WindowEnergy) -> tuple[float, ...]:
    third_s = best.seconds / 3.0
    found = []
    for number in range(3):
        start_s = best.start_s + number * third_s
        try:
            found.append(energy_of(trace, start_s, start_s + third_s).power_w)
        except NoEnergy:
            return ()  # the window is too short to be cut
    return tuple(found)


def idle_power(recording: Recording, part: str, before_s: float) -> tuple[float | None, str]:
    """Mean power of a part before this instant, where it was idle; or the reason why it is not known."""
    busy = (recording.about.get("busy_at_start") or {}).get(part)
    if busy is None:
        return None, "whether it was idle before the run cannot be told"
    if busy:
        return None, f"it was not idle before the run: {busy}"
    started_s = recording.about.get("started_monotonic_s")
    from_s = -math.inf if started_s is None else float(started_s)
    able = [trace for trace in recording.of_part(part) if trace.sensor.kind in ("instantaneous", "average")]
    if not able:
        return None, "it has no sensor that reads power"
    for trace in able:
        # A driver's buffer, and an average, reach back to before, when nobody looked whether the device was idle.
        since_s = from_s + (trace.sensor.window_s or 0.0)
        inside = [r for r in trace.readings if since_s <= r.after_s <= before_s]
        if len(inside) >= 5 and inside[-1].after_s - inside[0].after_s >= IDLE_AT_LEAST_S:
            return math.fsum(r.value for r in inside) / len(inside), trace.sensor.id
    return None, f"it was sampled for less than {IDLE_AT_LEAST_S:.0f} s before the run"


def node_energy(parts: list[PartEnergy], sensors: list[Sensor]) -> MeasuredNode | None:
    """The node from its own sensor; else the sum of the parts that no other part contains."""
    known = [part for part in parts if part.figure is not None]
    has_devices = any(part.scope in ("gpu", "module") for part in parts)
    for part in known:
        # The platform of a server's CPU (psys) may leave out its accelerators: there it is not the node.
        if part.scope == "node" and not (part.part == PLATFORM and has_devices):
            return _sum(MEASURED, [part])
    # What holds others and has no figure itself must not keep them out of the sum.
    names = {part.part for part in known} - {PLATFORM}
    inside = contained([sensor for sensor in sensors if sensor.part in names])
    outermost = [part for part in known if part.part in names - inside]
    return _sum(LOWER_BOUND, outermost) if outermost else None


def contained(sensors: list[Sensor]) -> set[str]:
    """The parts that lie inside another part that is measured here.

    A module's or a blade's own meter knows that it holds GPUs, not which; and a GPU's driver may tell of the same
    module a second time: with such meters present, every other GPU and module is inside them, whoever tells of it.
    """
    inside = {name for sensor in sensors for name in sensor.contains}
    meters = {s.part for s in sensors if any(name.startswith("gpus-of-") for name in s.contains)}
    if meters:
        inside |= {s.part for s in sensors if s.scope in ("gpu", "module")} - meters
    return inside


def _sum(how: str, parts: list[PartEnergy]) -> MeasuredNode:
    figures = [part.figure for part in parts if part.figure is not None]
    return MeasuredNode(
        how=how,
        energy_j=math.fsum(f.energy_j for f in figures),
        uncertainty_j=math.hypot(*(f.uncertainty_j for f in figures)),
        seconds=max(f.seconds for f in figures),
        power_w=math.fsum(f.power_w for f in figures),
        parts=[part.part for part in parts],
    )


AGREE_PASS, AGREE_WARN = 0.02, 0.05
DRIFT_ALLOWED = 0.02  # over the window; a drift that is shown to be larger is doubted
DRIFT_EXCLUDED = 0.05  # where this much could hide in the noise, nothing is said
WORST_UNCERTAINTY = 0.015
GAP_PERIODS = 10.0
LIMIT_MARGIN = 1.05  # sensors are a few percent off, and a limit holds on average

NAMES = {"energy-foreign": "foreign processes", "energy-span": "window"}  # in the lines for a person


def part_checks(part: PartEnergy, limit_w: float | None) -> list[Check]:
    """The checks of one part that has a figure."""
    figure = part.figure
    if figure is None:
        return [Check("energy", "unknown", f"{part.label}: no energy figure: {part.reason}")]
    found = [_window(part), _agreement(part), _gap(part), _drift(part)]
    if limit_w:
        level: Level = "pass" if figure.power_w <= LIMIT_MARGIN * limit_w else "fail"
        found.append(Check("energy-limit", level, f"{figure.power_w:.0f} W mean under a limit of {limit_w:.0f} W"))
    if part.notes:
        found.append(Check("energy-sensor", "warn", "; ".join(part.notes[:3])))
    return found


def _window(part: PartEnergy) -> Check:
    figure = part.figure
    assert figure is not None
    name = "ticks" if figure.method == "counter" else "readings"
    text = (
        f"± {100 * figure.relative_uncertainty:.2g} % (95 %, calibration apart) from {figure.readings} {name} of"
        f" {1e3 * figure.period_s:.0f} ms over {figure.seconds:.1f} s"
    )
    return Check("energy-window", "pass" if figure.relative_uncertainty <= WORST_UNCERTAINTY else "warn", text)


def _agreement(part: PartEnergy) -> Check:
    difference, allowed = part.difference, part.allowed
    if difference is None or allowed is None or part.beside is None:
        return Check("energy-agreement", "unknown", "there is no second way to measure it here")
    figure = part.figure
    assert figure is not None
    text = (
        f"{_short(part.beside.sensor)} integrated is {100 * difference:+.2g} % off {_short(figure.sensor)}"
        f" (their uncertainties allow {100 * allowed:.2g} %)"
    )
    off = abs(difference)
    level: Level = "pass" if off <= max(AGREE_PASS, allowed) else "warn" if off <= AGREE_WARN else "fail"
    return Check("energy-agreement", level, text)


def _gap(part: PartEnergy) -> Check:
    figure = part.figure
    assert figure is not None
    large = figure.largest_gap_s > max(GAP_PERIODS * figure.period_s, 0.5)
    text = f"the longest time without a reading was {1e3 * figure.largest_gap_s:.0f} ms"
    # A counter goes on counting while nobody reads it.
    return Check("energy-gap", "warn" if large and figure.method == "integral" else "pass", text)


def _drift(part: PartEnergy) -> Check:
    """Whether the power is shown to have changed by more than a little; noise alone is no drift."""
    trend = part.trend
    if trend is None:
        return Check("energy-drift", "unknown", "the window has too few readings to show a drift")
    change, half_width = 100 * trend.change, 100 * trend.half_width
    text = f"the power changed by {change:+.2g} % over the window (90 % CI ± {half_width:.2g} %)"
    if part.thirds_w:
        text += f"; mean power of the thirds: {', '.join(f'{power_w:.0f}' for power_w in part.thirds_w)} W"
    if abs(trend.change) - trend.half_width > DRIFT_ALLOWED:
        return Check("energy-drift", "warn", text)
    hidden = abs(trend.change) + trend.half_width > DRIFT_EXCLUDED
    return Check("energy-drift", "unknown" if hidden else "pass", text)


def node_checks(node: MeasuredNode | None, parts: list[PartEnergy], sensors: list[Sensor]) -> list[Check]:
    """A node cannot use less than its devices together."""
    if node is None or node.how != "measured":
        return []
    known = {part.part: part.figure for part in parts if part.figure is not None and part.scope != "node"}
    inside = contained([sensor for sensor in sensors if sensor.part in known])
    total_w = sum(figure.power_w for part, figure in known.items() if part not in inside)
    slack_w = 0.05 * total_w + node.uncertainty_j / node.seconds
    level: Level = "pass" if node.power_w + slack_w >= total_w else "fail"
    return [Check("energy-node", level, f"the node's {node.power_w:.0f} W against {total_w:.0f} W of its devices")]


def covered(wanted: Iterable[str], parts: list[PartEnergy]) -> Check:
    """Whether every device that took part was measured."""
    names = list(wanted)
    known = {part.part for part in parts if part.figure is not None}
    missed = [name for name in names if name not in known]
    if not names:
        return Check("energy-devices", "unknown", "no device is known to have taken part")
    text = f"{len(names) - len(missed)} of {len(names)} devices measured"
    return Check(
        "energy-devices", "warn" if missed else "pass", text + (f"; not {', '.join(missed)}" if missed else "")
    )


def quality_lines(part: PartEnergy, checks: list[Check]) -> list[str]:
    """Source, scope, window, and every check, for a person."""
    figure = part.figure
    if figure is None:
        return [f"no figure: {part.reason}"]
    sensor = figure.sensor
    calibration = (
        f"calibration ± {100 * sensor.uncertainty:.2g} %"
        + (f" ({sensor.uncertainty_source})" if sensor.uncertainty_source else "")
        if sensor.uncertainty
        else "calibration unknown"
    )
    has_span = any(check.name == "energy-span" for check in checks)
    return [
        f"source: {_short(sensor)} ({figure.method}, evidence: {sensor.evidence}); {calibration}",
        f"scope: {part.scope}",
        *([] if has_span else [f"window: {figure.seconds:.2f} s"]),
        *(said(check, figure.method) for check in checks),
    ]


def said(check: Check, method: str = "") -> str:
    """A check for a person; what is good needs no mark."""
    name = NAMES.get(check.name, check.name.removeprefix("energy-"))
    if name == "window" and check.name != "energy-span":
        name = "ticks" if method == "counter" else "readings"
    return f"{name}: {check.message}" + ("" if check.level == "pass" else f" [{check.level}]")


def _short(sensor: Sensor) -> str:
    return sensor.id.partition(" ")[0]


def recorded_part(part: PartEnergy, idle: tuple[float | None, str]) -> EnergyPart:
    """One part as the record holds it."""
    idle_w, said = idle
    known = EnergyPart(
        part=part.part, scope=part.scope, label=part.label, idle_power_w=idle_w,
        idle_source=None if idle_w is None else said, idle_reason=said if idle_w is None else None,
        more={} if idle_w is not None else {"idle_power_w": None},
    )  # fmt: skip
    figure, beside = part.figure, part.beside
    if figure is None:
        return overlaid(known, stated(EnergyPart, energy_j=None, reason=part.reason))
    sensor, trend = figure.sensor, part.trend
    found = stated(
        EnergyPart,
        energy_j=figure.energy_j,
        uncertainty_j=figure.uncertainty_j,
        window_s=(figure.start_s, figure.end_s),
        power_w=figure.power_w,
        power_peak_w=part.peak_w,
        peak_sensor=part.peak_sensor or None,
        method=figure.method,
        sensor=sensor.id,
        kind=sensor.kind,
        evidence=sensor.evidence,
        calibration=sensor.uncertainty,
        readings=figure.readings,
        period_s=figure.period_s,
        largest_gap_s=figure.largest_gap_s,
        beside=None if beside is None else stated(
            EnergyBeside, sensor=beside.sensor.id, energy_j=beside.energy_j, difference=part.difference,
            allowed=part.allowed,
        ),
        thirds_w=part.thirds_w,
        drift=None if trend is None else trend.change,
        drift_half_width=None if trend is None else trend.half_width,
    )  # fmt: skip
    return overlaid(known, found)


def recorded_node(node: MeasuredNode | None, recording: Recording) -> NodeEnergy:
    """The node as the record holds it."""
    if node is None:
        reasons = "; ".join(f"{name}: {why}" for name, why in recording.reasons.items())
        reason = f"nothing of the node was measured ({reasons})" if reasons else "no sensor"
        return stated(NodeEnergy, energy_j=None, reason=reason)
    return NodeEnergy(node.how, node.energy_j, node.uncertainty_j, node.seconds, node.power_w, tuple(node.parts))
