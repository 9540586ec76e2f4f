"""Known loads on a real H200: if these fail, what was measured there is judged differently now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prony_node.power.figures import PartEnergy, part_energies
from prony_node.power.recording import Recording, read_recording

FOLDER = Path(__file__).parents[3] / "replay" / "power" / "h200-loads"
LOADS: list[tuple[str, float, float]] = json.loads((FOLDER / "loads.json").read_text(encoding="utf-8"))
STEADY = ("steady load", "training wideresnet, batch 256")


@pytest.fixture(scope="module")
def recording() -> Recording:
    found = read_recording(FOLDER)
    assert found is not None
    return found


def part_of(recording: Recording, name: str) -> PartEnergy:
    (span,) = [load for load in LOADS if load[0] == name]
    (part,) = part_energies(recording, span[1], span[2])
    return part


def test_the_loads_are_those_of_the_benchmark() -> None:
    names = [name for name, _, _ in LOADS]
    assert names[0] == "idle"
    assert set(STEADY) < set(names)
    assert sum(name.startswith("square wave") for name in names) >= 5


@pytest.mark.parametrize("name", [name for name, _, _ in LOADS])
def test_counter_and_integral_agree_within_their_uncertainty(recording: Recording, name: str) -> None:
    part = part_of(recording, name)
    assert part.figure is not None, part.reason
    assert part.beside is not None
    assert (part.figure.method, part.beside.method) == ("counter", "integral")
    assert part.figure.sensor.id.startswith("nvidia.energy GPU-")
    assert part.beside.sensor.id.startswith("nvidia.samples GPU-")
    assert part.difference is not None
    assert part.allowed is not None
    assert abs(part.difference) <= part.allowed


@pytest.mark.parametrize("name", STEADY)
def test_ten_steady_seconds_are_known_to_one_and_a_half_percent(recording: Recording, name: str) -> None:
    part = part_of(recording, name)
    assert part.figure is not None
    assert part.figure.relative_uncertainty <= 0.015
    assert part.trend is not None
    assert abs(part.trend.change) - part.trend.half_width < 0.02


def test_the_counter_is_seen_to_tick_every_100_ms(recording: Recording) -> None:
    """Reads are 50 ms and more apart, and so is what they see of a tick."""
    part = part_of(recording, "steady load")
    assert part.figure is not None
    assert part.figure.period_s == pytest.approx(0.1, rel=0.1)
    assert part.figure.readings == pytest.approx(part.figure.seconds / 0.1, rel=0.1)


def test_no_mean_is_above_the_limit_though_peaks_are(recording: Recording) -> None:
    (limit_w,) = recording.about["limits_w"].values()
    for name, _, _ in LOADS:
        part = part_of(recording, name)
        assert part.figure is not None
        assert part.figure.power_w <= limit_w
        assert part.peak_w is not None
        assert part.peak_w > part.figure.power_w
