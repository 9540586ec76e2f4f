"""Made-up sensors, traces and figures of parts, for the tests of figures and their quality: nothing was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prony_node.power.figures import PartEnergy
from prony_node.power.recording import Trace
from prony_node.power.sensor import Reading, Sensor
from prony_node.power.window import WindowEnergy

EVERY_S = 0.05
TICK_S = 0.1
GPU = "GPU-5f1c0a3e-0000-4000-8000-000000000001"


def made_sensor(part: str, kind: str = "counter", scope: str = "gpu", name: str = "", **stated: Any) -> Sensor:
    reader = stated.pop("reader", "made")
    stated = {"period_s": TICK_S, **stated}
    return Sensor(f"{reader}.{name or kind} {part}", reader, kind, scope, part, f"Made {part}, {kind}", **stated)


def made_trace(sensor: Sensor, power_w: float, start_s: float = 0.0, end_s: float = 14.0) -> Trace:
    """Constant power, read every 50 ms; a counter ticks at every second read."""
    readings = []
    for number in range(round((end_s - start_s) / EVERY_S)):
        at_s = start_s + EVERY_S * number
        value = power_w * TICK_S * (number // 2) if sensor.kind == "counter" else power_w
        readings.append(Reading(at_s, at_s + 1e-4, value))
    return Trace(sensor, readings)


def varied(trace: Trace, factor_of: dict[int, float]) -> Trace:
    """The same power trace with some readings multiplied."""
    readings = [replace(r, value=r.value * factor_of.get(n, 1.0)) for n, r in enumerate(trace.readings)]
    return Trace(trace.sensor, readings, trace.notes)


def made_figure(sensor: Sensor, power_w: float, **more: Any) -> WindowEnergy:
    method = "counter" if sensor.kind == "counter" else "integral"
    known = {
        "energy_j": 10.0 * power_w, "start_s": 2.0, "end_s": 12.0, "uncertainty_j": 0.05 * power_w, "readings": 100,
        "period_s": TICK_S, "largest_gap_s": EVERY_S,
    }  # fmt: skip
    return WindowEnergy(sensor, method, **{**known, **more})


def made_part(sensor: Sensor, power_w: float | None, **more: Any) -> PartEnergy:
    """A part with a figure of 10 s; without one, where no power is given."""
    figure = None if power_w is None else made_figure(sensor, power_w)
    reason = "it does not answer" if power_w is None else ""
    return PartEnergy(sensor.part, sensor.scope, f"Made {sensor.part}", **{"figure": figure, "reason": reason, **more})
