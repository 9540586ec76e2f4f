"""What an energy figure is worth: its checks, each a sentence, and the lines that are printed with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prony_node.contract.assemble import make_check
from prony_node.power.figures import NodeEnergy, PartEnergy, contained
from prony_node.power.recording import Recording
from prony_node.power.sensor import Sensor

AGREE_PASS, AGREE_WARN = 0.02, 0.05
DRIFT_ALLOWED = 0.02  # over the window; a drift that is shown to be larger is doubted
DRIFT_EXCLUDED = 0.05  # where this much could hide in the noise, nothing is said
WORST_UNCERTAINTY = 0.015
GAP_PERIODS = 10.0
LIMIT_MARGIN = 1.05  # sensors are a few percent off, and a limit holds on average

NAMES = {"energy-foreign": "foreign processes", "energy-span": "window"}  # in the lines for a person

Check = dict[str, str]


def part_checks(part: PartEnergy, limit_w: float | None) -> list[Check]:
    """The checks of one part that has a figure."""
    figure = part.figure
    if figure is None:
        return [make_check("energy", "unknown", f"{part.label}: no energy figure: {part.reason}")]
    found = [_window(part), _agreement(part), _gap(part), _drift(part)]
    if limit_w:
        level = "pass" if figure.power_w <= LIMIT_MARGIN * limit_w else "fail"
        found.append(make_check("energy-limit", level, f"{figure.power_w:.0f} W mean under a limit of {limit_w:.0f} W"))
    if part.notes:
        found.append(make_check("energy-sensor", "warn", "; ".join(part.notes[:3])))
    return found


def _window(part: PartEnergy) -> Check:
    figure = part.figure
    assert figure is not None
    name = "ticks" if figure.method == "counter" else "readings"
    text = (
        f"± {100 * figure.relative_uncertainty:.2g} % (95 %, calibration apart) from {figure.readings} {name} of"
        f" {1e3 * figure.period_s:.0f} ms over {figure.seconds:.1f} s"
    )
    return make_check("energy-window", "pass" if figure.relative_uncertainty <= WORST_UNCERTAINTY else "warn", text)


def _agreement(part: PartEnergy) -> Check:
    difference, allowed = part.difference, part.allowed
    if difference is None or allowed is None or part.beside is None:
        return make_check("energy-agreement", "unknown", "there is no second way to measure it here")
    figure = part.figure
    assert figure is not None
    text = (
        f"{_short(part.beside.sensor)} integrated is {100 * difference:+.2g} % off {_short(figure.sensor)}"
        f" (their uncertainties allow {100 * allowed:.2g} %)"
    )
    off = abs(difference)
    level = "pass" if off <= max(AGREE_PASS, allowed) else "warn" if off <= AGREE_WARN else "fail"
    return make_check("energy-agreement", level, text)


def _gap(part: PartEnergy) -> Check:
    figure = part.figure
    assert figure is not None
    large = figure.largest_gap_s > max(GAP_PERIODS * figure.period_s, 0.5)
    text = f"the longest time without a reading was {1e3 * figure.largest_gap_s:.0f} ms"
    # A counter goes on counting while nobody reads it.
    return make_check("energy-gap", "warn" if large and figure.method == "integral" else "pass", text)


def _drift(part: PartEnergy) -> Check:
    """Whether the power is shown to have changed by more than a little; noise alone is no drift."""
    trend = part.trend
    if trend is None:
        return make_check("energy-drift", "unknown", "the window has too few readings to show a drift")
    change, half_width = 100 * trend.change, 100 * trend.half_width
    text = f"the power changed by {change:+.2g} % over the window (90 % CI ± {half_width:.2g} %)"
    if part.thirds_w:
        text += f"; mean power of the thirds: {', '.join(f'{power_w:.0f}' for power_w in part.thirds_w)} W"
    if abs(trend.change) - trend.half_width > DRIFT_ALLOWED:
        return make_check("energy-drift", "warn", text)
    hidden = abs(trend.change) + trend.half_width > DRIFT_EXCLUDED
    return make_check("energy-drift", "unknown" if hidden else "pass", text)


def node_checks(node: NodeEnergy | None, parts: list[PartEnergy], sensors: list[Sensor]) -> list[Check]:
    """A node cannot use less than its devices together."""
    if node is None or node.how != "measured":
        return []
    known = {part.part: part.figure for part in parts if part.figure is not None and part.scope != "node"}
    inside = contained([sensor for sensor in sensors if sensor.part in known])
    total_w = sum(figure.power_w for part, figure in known.items() if part not in inside)
    slack_w = 0.05 * total_w + node.uncertainty_j / node.seconds
    level = "pass" if node.power_w + slack_w >= total_w else "fail"
    return [make_check("energy-node", level, f"the node's {node.power_w:.0f} W against {total_w:.0f} W of its devices")]


def covered(wanted: Iterable[str], parts: list[PartEnergy]) -> Check:
    """Whether every device that took part was measured."""
    names = list(wanted)
    known = {part.part for part in parts if part.figure is not None}
    missed = [name for name in names if name not in known]
    if not names:
        return make_check("energy-devices", "unknown", "no device is known to have taken part")
    text = f"{len(names) - len(missed)} of {len(names)} devices measured"
    return make_check(
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
    has_span = any(check["name"] == "energy-span" for check in checks)
    return [
        f"source: {_short(sensor)} ({figure.method}, evidence: {sensor.evidence}); {calibration}",
        f"scope: {part.scope}",
        *([] if has_span else [f"window: {figure.seconds:.2f} s"]),
        *(said(check, figure.method) for check in checks),
    ]


def said(check: Check, method: str = "") -> str:
    """A check for a person; what is good needs no mark."""
    name = NAMES.get(check["name"], check["name"].removeprefix("energy-"))
    if name == "window" and check["name"] != "energy-span":
        name = "ticks" if method == "counter" else "readings"
    return f"{name}: {check['message']}" + ("" if check["level"] == "pass" else f" [{check['level']}]")


def _short(sensor: Sensor) -> str:
    return sensor.id.partition(" ")[0]


def part_json(part: PartEnergy, idle: tuple[float | None, str]) -> dict[str, Any]:
    """One part as the record holds it."""
    known: dict[str, Any] = {"part": part.part, "scope": part.scope, "label": part.label}
    idle_w, idle_source = idle
    known["idle_power_w"] = idle_w
    known["idle_source" if idle_w is not None else "idle_reason"] = idle_source
    figure = part.figure
    if figure is None:
        return {**known, "energy_j": None, "reason": part.reason}
    sensor = figure.sensor
    return {
        **known,
        "energy_j": figure.energy_j,
        "uncertainty_j": figure.uncertainty_j,
        "window_s": [figure.start_s, figure.end_s],
        "power_w": figure.power_w,
        "power_peak_w": part.peak_w,
        "peak_sensor": part.peak_sensor or None,
        "method": figure.method,
        "sensor": sensor.id,
        "kind": sensor.kind,
        "evidence": sensor.evidence,
        "calibration": sensor.uncertainty,
        "readings": figure.readings,
        "period_s": figure.period_s,
        "largest_gap_s": figure.largest_gap_s,
        "beside": None if part.beside is None else {
            "sensor": part.beside.sensor.id, "energy_j": part.beside.energy_j, "difference": part.difference,
            "allowed": part.allowed,
        },
        "thirds_w": list(part.thirds_w),
        "drift": None if part.trend is None else part.trend.change,
        "drift_half_width": None if part.trend is None else part.trend.half_width,
    }  # fmt: skip


def node_json(node: NodeEnergy | None, recording: Recording) -> dict[str, Any]:
    if node is None:
        reasons = "; ".join(f"{name}: {why}" for name, why in recording.reasons.items())
        return {"energy_j": None, "reason": f"nothing of the node was measured ({reasons})" if reasons else "no sensor"}
    return {
        "how": node.how, "energy_j": node.energy_j, "uncertainty_j": node.uncertainty_j, "seconds": node.seconds,
        "power_w": node.power_w, "parts": node.parts,
    }  # fmt: skip
