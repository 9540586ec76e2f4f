"""Does the printed uncertainty of an energy cover? Recordings of known power curves through the shipped arithmetic.

    python benchmarks/energy_truth.py [--cases 1000] [--seed 1] [--markdown FILE]

Every case is written as a recording, read back and given to energy_of. Needs numpy beside Prony. Exits with 1 when the
truth lies within the printed uncertainty in less than 95 % of the cases, when the median uncertainty is 2 % or more,
or when too many cases have no figure.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from energy_truth_series import (  # noqa: I001 (one name a line says no more)
    COUNTERS, MARGIN_S, RAPL_WRAPS_AT_J, SENSORS, STAMPED, Case, Faults, record, square, steps, straight,
)  # fmt: skip
from prony_node.power.recording import Trace, Writer, read_recording
from prony_node.power.window import NoEnergy, WindowEnergy, energy_of

COVERED_GATE, MEDIAN_GATE, WITHOUT_GATE = 0.95, 0.02, 0.05


def constant(case: Case) -> None:
    """Nothing varies: every reading of a power sensor is the same."""


def ramp(case: Case) -> None:
    """Up or down by up to the level itself, over the window or a part of it."""
    knots_s = sorted([case.inside_s(), case.inside_s()]) if case.is_drawn(0.5) else [case.start_s, case.end_s]
    knots_s[1] = max(knots_s[1], knots_s[0] + 0.1)
    other_w = case.level_w * case.rng.uniform(-0.9, 1.0)
    case.add(straight([0.0, *knots_s, case.length_s], [0.0, 0.0, other_w, other_w]))
    case.add_noise()


def gaps(case: Case) -> None:
    """A reader that stalls; and often a hole of seconds, now and then over an edge."""
    case.faults.stalls = int(case.rng.integers(1, 6))
    if case.is_drawn(0.6):
        from_s = case.inside_s()
        case.faults.hole_s = (from_s, from_s + case.rng.uniform(1.0, 5.0))
    case.add_noise()
    if case.is_drawn(0.3):
        case.add(square(case.rng, case.length_s, case.level_w * case.rng.uniform(0.05, 0.5)))


def edge_steps(case: Case) -> None:
    """The load begins or ends exactly at an edge of the window, or close to it."""
    changes_s = []
    for edge_s in (case.start_s, case.end_s):
        away_s = 0.0 if case.is_drawn(0.4) else np.exp(case.rng.uniform(np.log(0.001), np.log(0.5)))
        changes_s.append(edge_s + away_s * case.rng.choice([-1.0, 1.0]))
    idle_w = -case.level_w * case.rng.uniform(0.3, 0.9, 2) * case.rng.choice([0.0, 1.0, 1.0], 2)
    case.add(steps(np.array([0.0, *changes_s, case.length_s]), np.array([idle_w[0], 0.0, idle_w[1]])))
    case.add_noise()


def wrap(case: Case) -> None:
    """A counter that starts again from zero within the recording."""
    case.sensor = replace(COUNTERS[0], wraps_at_j=float(case.rng.choice(RAPL_WRAPS_AT_J)))
    case.faults.stalls = int(case.rng.integers(0, 3))
    case.add_noise()


def clock_step(case: Case) -> None:
    """The wall clock is set: a driver's stamps go wrong or are lost for a while; a counter that is asked keeps time."""
    rng = case.rng
    case.add_noise()
    if case.is_drawn(0.3):
        case.add(square(rng, case.length_s, case.level_w * rng.uniform(0.05, 0.5)))
    if case.is_drawn(0.2):
        case.sensor = COUNTERS[int(rng.integers(len(COUNTERS)))]
        case.faults.stalls = 1
        return
    case.sensor = STAMPED[int(rng.integers(len(STAMPED)))]
    set_clock(case)


def set_clock(case: Case) -> None:
    step_s = float(np.exp(case.rng.uniform(np.log(0.003), np.log(0.5))) * case.rng.choice([-1.0, 1.0]))
    ways = ["shipped", "shifted", "shifted, caught up", "shifted, missing"]
    how = ways[int(case.rng.integers(len(ways)))]
    if how == "shipped" and case.is_drawn(0.3):
        step_s *= 7200.0  # where every stamp tells that something is wrong, any step will do
    case.faults.clock_step_s, case.faults.clock_step_how = step_s, how
    case.faults.clock_step_at_s = case.inside_s()


def square_wave(case: Case) -> None:
    """A load that comes and goes every 30 ms to 5 s."""
    case.add(square(case.rng, case.length_s, case.level_w * case.rng.uniform(0.1, 1.5)))
    case.add_noise()


def quantised(case: Case) -> None:
    """A coarse sensor: steps of 0.1 to 3 % of the power, or of the energy of a tick or of a tenth of a second."""
    coarse = case.level_w * float(np.exp(case.rng.uniform(np.log(0.001), np.log(0.03))))
    if case.sensor.kind == "counter":
        coarse *= max(0.1, case.sensor.period_s or 0.0)
    case.sensor = replace(case.sensor, resolution=coarse)
    case.add_noise()


def mixture(case: Case) -> None:
    """Any of these at once."""
    rng = case.rng
    for add in (ramp, edge_steps, square_wave, gaps):
        if case.is_drawn(0.35):
            add(case)
    if case.sensor == COUNTERS[0] and case.is_drawn(0.5):
        wrap(case)
    if case.sensor.kind == "counter" and case.is_drawn(0.05):
        case.faults.reset_at_s = case.inside_s()
    if case.sensor in STAMPED and case.is_drawn(0.3):
        set_clock(case)
    if case.is_drawn(0.2):
        quantised(case)
    case.faults.stalls += int(rng.integers(0, 3))


KINDS: dict[str, Callable[[Case], None]] = {
    "constant": constant, "ramp": ramp, "gaps": gaps, "steps at the edges": edge_steps, "counter wrap": wrap,
    "clock step": clock_step, "square wave": square_wave, "coarse sensor": quantised,
}  # fmt: skip
MIXTURE = "mixture"
MIXTURES_SHARE = 0.2


@dataclass
class Outcome:
    """How one case came out."""

    kind: str
    sensor: str
    truth_j: float = 0.0
    figure: WindowEnergy | None = None
    reason: str = ""
    is_refusable: bool = False  # there was a reset, a hole over an edge, or no room for enough ticks

    @property
    def error_j(self) -> float:
        assert self.figure is not None
        return abs(self.figure.energy_j - self.truth_j)

    @property
    def is_covered(self) -> bool:
        return self.figure is not None and self.error_j <= self.figure.uncertainty_j + 1e-9 * self.truth_j


def run(kind: str, seed: int, number: int, folder: Path) -> Outcome:
    rng = np.random.default_rng([seed, number])
    window_s = float(rng.uniform(3.0, 10.0) if rng.random() < 0.1 else rng.uniform(10.0, 30.0))
    level_w = float(np.exp(rng.uniform(np.log(60.0), np.log(1000.0))))
    length_s = window_s + 2.0 * MARGIN_S
    sensor = SENSORS[int(rng.integers(len(SENSORS)))]
    case = Case(rng, window_s, level_w, sensor, straight([0.0, length_s], [level_w, level_w]), Faults())
    (mixture if kind == MIXTURE else KINDS[kind])(case)
    curve = case.curve.above(0.05 * level_w)
    age = float(rng.uniform(0.0, 0.5)) if rng.random() < 0.5 else 0.0
    stamped = case.sensor.id.startswith("stamped")
    trace = written_and_read(record(rng, curve, case.sensor, case.faults, stamped=stamped, age=age), folder)
    outcome = Outcome(kind, case.sensor.id, is_refusable=case.is_refusable)
    try:
        found = energy_of(trace, case.start_s, case.end_s)
    except NoEnergy as no:
        outcome.reason = str(no)
        return outcome
    outcome.figure = found
    outcome.truth_j = float(curve.energy_j(found.end_s) - curve.energy_j(found.start_s))
    return outcome


def written_and_read(trace: Trace, folder: Path) -> Trace:
    writer = Writer(folder, [trace.sensor], {})
    writer.add(trace.sensor, trace.readings)
    writer.close()
    recording = read_recording(folder)
    assert recording is not None
    return recording.traces[0]


HEADER = ["", "cases", "no figure", "covered %", "median unc. %", "90th unc. %", "median error / unc."]


def row(name: str, outcomes: list[Outcome]) -> list[str]:
    figures = [one.figure for one in outcomes if one.figure is not None]
    relative = [figure.relative_uncertainty for figure in figures] or [np.nan]
    ratios = [one.error_j / max(one.figure.uncertainty_j, 1e-9) for one in outcomes if one.figure] or [np.nan]
    return [
        name, str(len(outcomes)), str(len(outcomes) - len(figures)), f"{100 * covered(outcomes):.1f}",
        f"{100 * median(relative):.2f}", f"{100 * float(np.quantile(relative, 0.9)):.2f}", f"{median(ratios):.2f}",
    ]  # fmt: skip


def covered(outcomes: list[Outcome]) -> float:
    """The share of those that have a figure or should have one."""
    asked = [one.is_covered for one in outcomes if one.figure is not None or not one.is_refusable]
    return sum(asked) / max(len(asked), 1)


def table(outcomes: list[Outcome]) -> str:
    kinds, sensors = dict.fromkeys(one.kind for one in outcomes), [sensor.id for sensor in SENSORS]
    lines = [HEADER, ["---"] * len(HEADER)]
    lines += [row(kind, [one for one in outcomes if one.kind == kind]) for kind in kinds]
    lines += [row(name, [one for one in outcomes if one.sensor == name]) for name in sensors]
    lines.append(row("all", outcomes))
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    # Which counter ticked how often does not matter here.
    reasons = sorted(re.sub(r"[0-9.]+ (times|s,)", r"N \1", one.reason) for one in outcomes if one.figure is None)
    named = [f"- {reasons.count(reason)} without a figure: {reason}" for reason in dict.fromkeys(reasons)]
    return "\n".join([text, *named]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage of Prony's energy figures on synthetic truth.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    mixtures = round(MIXTURES_SHARE * options.cases)
    names = [list(KINDS)[i % len(KINDS)] for i in range(options.cases - mixtures)] + [MIXTURE] * mixtures
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [run(kind, options.seed, number, Path(folder)) for number, kind in enumerate(names)]
    text = table(outcomes)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    figures = [one.figure for one in outcomes if one.figure is not None]
    share, middle = covered(outcomes), median(figure.relative_uncertainty for figure in figures)
    without = 1.0 - len(figures) / len(outcomes)
    passed = share >= COVERED_GATE and middle < MEDIAN_GATE and without <= WITHOUT_GATE
    print(
        f"{len(outcomes)} cases: the truth within the uncertainty in {100 * share:.1f} % (gate 95), median uncertainty "
        f"{100 * middle:.2f} % (gate 2), {100 * without:.1f} % without a figure (gate 5): "
        + ("pass" if passed else "MISS")
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
