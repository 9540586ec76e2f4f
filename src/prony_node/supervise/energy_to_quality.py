"""What it cost to learn: the energy of training alone, the evaluations between the epochs left out."""

from __future__ import annotations

import math
from typing import Any

from prony_node.contract.metrics import measured, missing
from prony_node.power.figures import PartEnergy
from prony_node.power.intervals import best_within
from prony_node.power.recording import Recording
from prony_node.power.window import NoEnergy

NAMES = ("energy", "energy_per_sample", "samples_per_wh", "power", "energy_to_quality")
JOULES_A_WH = 3600.0


def energy_to_quality(
    recording: Recording, parts: list[PartEnergy], stretches: list[list[float]], result: dict[str, Any]
) -> dict[str, Any]:
    """The energy metrics of a run that trained for whole epochs; they stand in place of those of one window."""
    intervals = [(float(start_s), float(end_s)) for start_s, end_s in stretches]
    seconds = math.fsum(end_s - start_s for start_s, end_s in intervals)
    try:
        found = [best_within(recording.of_part(part.part), intervals) for part in parts]
    except NoEnergy as no:
        return {name: missing(str(no)) for name in NAMES}
    energy_j = math.fsum(joules for joules, _, _ in found)
    relative = math.hypot(*(doubt_j for _, doubt_j, _ in found)) / energy_j
    first = found[0][2]
    epochs = f"{len(intervals)} epoch{'s' if len(intervals) != 1 else ''}"
    how: dict[str, Any] = {
        "scope": "+".join(dict.fromkeys(part.scope for part in parts)),
        "source": f"{first.sensor.id.partition(' ')[0]}, {first.method}, over the {seconds:.2f} s of {epochs}, "
        "evaluations left out",
        "interval": "95 %, of this window",
    }

    def with_ends(value: float, unit: str) -> dict[str, Any]:
        return measured(value, unit, low=value / (1.0 + relative), high=value * (1.0 + relative), **how)

    learning = result.get("learning") or {}
    unit = str(result.get("unit") or "units").partition("/")[0]
    units = (result.get("work") or {}).get("epoch_units")
    metrics = {"energy": with_ends(energy_j, "J"), "power": with_ends(energy_j / seconds, "W")}
    if units:
        metrics["energy_per_sample"] = with_ends(energy_j / units, f"J/{unit.removesuffix('s')}")
        metrics["samples_per_wh"] = with_ends(JOULES_A_WH * units / energy_j, f"{unit}/Wh")
    if learning.get("reached"):
        metrics["energy_to_quality"] = with_ends(energy_j, "J")
    else:
        reason = (result.get("metrics") or {}).get("time_to_quality", {}).get("reason")
        metrics["energy_to_quality"] = missing(str(reason or "no quality was asked for"))
    return metrics
