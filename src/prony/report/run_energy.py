"""The energy of a whole run, from what its sampler wrote: a record's own figure is of the steady window alone."""

from __future__ import annotations

import contextlib
import csv
import itertools
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.plain import SAMPLES_LIMIT, plain_lines

Reading = tuple[float, float]  # when, and what: joules of a counter, watts of any other sensor


def run_energy_j(folder: Path, record: dict[str, Any]) -> float | None:
    """Joules of the devices that took part, first reading to last; None where there was no sensor."""
    detail = record.get("energy") or {}
    parts = [part for part in detail.get("parts") or [] if part.get("sensor")]
    if any(node["energy_j"] is None for node in detail.get("nodes") or []):
        return None  # a sum without one of the nodes is none
    nodes = {part.get("node", 0) for part in parts}  # each has its own samples
    readings = {node: _read(files.node_folder(folder, node)) for node in nodes}
    found = [
        _energy_j(readings[part.get("node", 0)].get(part["sensor"], []), part.get("kind") == "counter")
        for part in parts
    ]
    known = [energy_j for energy_j in found if energy_j is not None]
    return sum(known) if known and len(known) == len(found) else None


def _read(folder: Path) -> dict[str, list[Reading]]:
    """Readings by sensor; a line that was cut short is passed over."""
    try:
        sensors = (files.read_json(folder / files.POWER) or {})["sensors"]
        names = {str(number): str(sensor["id"]) for number, sensor in enumerate(sensors)}
        found: dict[str, list[Reading]] = {}
        for line in csv.DictReader(plain_lines(folder / files.POWER_SAMPLES, SAMPLES_LIMIT)):
            with contextlib.suppress(KeyError, ValueError, TypeError):
                found.setdefault(names[line["sensor"]], []).append((float(line["after_s"]), float(line["value"])))
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return {}
    return found


def _energy_j(readings: list[Reading], counts: bool) -> float | None:
    if len(readings) < 2:
        return None
    readings = sorted(readings)
    if counts:
        difference_j = readings[-1][1] - readings[0][1]
        return difference_j if difference_j >= 0.0 else None  # it wrapped
    pairs = itertools.pairwise(readings)
    return sum((later - earlier) * (a + b) / 2.0 for (earlier, a), (later, b) in pairs)
