"""The table of benchmarks/coverage.py: what is counted in a cell, and what its gate asks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from coverage_series import EVENTS, Cell
from prony_node.stats import StopRule, t_quantile

COVERAGE_GATE, COVERAGE_GATE_AR_09 = 0.93, 0.90
TOLD_GATE, DOUBT_GATE = 0.90, 0.05
WIDTH_GATE, FLAG_GATE, FALSE_FLAG_GATE = 1.5, 0.95, 0.05
ENOUGH_SERIES = 2000  # from here on a share is compared with its gate as it is
FAMILY_WISE = 0.001  # below: the chance that any gate of the table is missed where every cell lies exactly on its gates
GATES_OF_A_CELL = 5  # at most


@dataclass
class Tally:
    """Sums over the series of a cell; two of them add up field by field."""

    series: int = 0
    covered: int = 0
    batch_covered: int = 0
    width: float = 0.0
    width_squared: float = 0.0
    ideal_width: float = 0.0
    steps: float = 0.0
    reached_tolerance: int = 0
    false_flags: int = 0
    drift_yes: int = 0
    drift_no: int = 0
    ideal_power: float = 0.0
    several_levels: int = 0
    unsteady: int = 0
    ideal_jump: float = 0.0
    doubted: int = 0  # a check of the series warns or fails
    contained: int = 0  # the reported window contains the event
    told: int = 0  # and the interval covers the long-run mean, or a check doubts it

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Row:
    """A cell's figures and its gate."""

    cell: Cell
    tally: Tally
    chance: float | None = None  # with which a gate may be missed by chance; None: a share is compared as it is

    def is_below(self, count: int, total: int, gate: float) -> bool:
        """Whether too few of these are counted: fewer than the gate, and significantly so where there is a chance."""
        if count >= gate * total:
            return False
        return self.chance is None or at_most(count, total, gate) < self.chance

    def is_above(self, count: int, total: int, gate: float) -> bool:
        return self.is_below(total - count, total, 1.0 - gate)

    @property
    def is_wide(self) -> bool:
        """Whether the mean width is beyond its gate, by its own standard error where there is a chance."""
        tally = self.tally
        mean = tally.width / tally.series
        if self.width_ratio <= WIDTH_GATE or self.chance is None:
            return self.width_ratio > WIDTH_GATE
        if tally.series < 3:
            return False
        variance = max(tally.width_squared / tally.series - mean**2, 0.0) / (tally.series - 1)
        least = mean - t_quantile(1.0 - self.chance, tally.series - 1) * math.sqrt(variance)
        return least > WIDTH_GATE * tally.ideal_width / tally.series

    def share(self, count: float) -> float:
        return count / self.tally.series

    @property
    def width_ratio(self) -> float:
        return self.tally.width / self.tally.ideal_width

    @property
    def detectable(self) -> bool:
        """Whether a detector that knows the true noise would see the drift in 95 % of the series."""
        return self.share(self.tally.ideal_power) >= FLAG_GATE

    @property
    def jump_visible(self) -> bool:
        """Whether one who knows the noise, and tests at 0.1 % as the place is unknown, sees it in 95 %."""
        return self.share(self.tally.ideal_jump) >= 3.29 + 1.645

    @property
    def never_doubted(self) -> bool:
        """Steady series, unless they are too noisy for the tolerance: then a check rightly says so."""
        return self.cell.kind == "steady" and self.cell.reaches(StopRule().tolerance, StopRule().max_time_s)

    def misses(self) -> list[str]:
        tally, total = self.tally, self.tally.series
        if self.cell.kind in EVENTS:
            return ["not told"] if self.is_below(tally.told, tally.contained, TOLD_GATE) else []
        if self.cell.kind == "switch":  # in noise a jump may pass for a drift: it is marked
            return ["not marked"] if self.jump_visible and self.is_below(tally.unsteady, total, FLAG_GATE) else []
        least = COVERAGE_GATE_AR_09 if self.cell.ar == 0.9 else COVERAGE_GATE
        found = []
        if self.is_below(tally.covered, total, least):
            found.append("coverage")
        if self.is_wide:
            found.append("width")
        if self.is_above(tally.false_flags, total, FALSE_FLAG_GATE):
            found.append("false flags")
        if self.detectable and self.is_below(tally.drift_yes, total, FLAG_GATE):
            found.append("drift missed")
        if self.never_doubted and self.is_above(tally.doubted, total, DOUBT_GATE):
            found.append("doubted")
        return found

    def verdict(self) -> str:
        missed, beyond = ", ".join(self.misses()), self.cell.beyond_the_gate
        if beyond:
            return f"beyond ({missed or 'pass'}: {beyond})"
        return f"**{missed}**" if missed else "pass"

    @property
    def fails(self) -> bool:
        return bool(self.misses()) and not self.cell.beyond_the_gate

    def columns(self) -> list[str]:
        tally, share = self.tally, self.share
        unknown = tally.series - tally.drift_yes - tally.drift_no
        told = f"{100 * tally.told / tally.contained:.1f}" if tally.contained else ""
        doubts = [f"{100 * share(tally.contained):.0f}", told, f"{100 * share(tally.doubted):.1f}"]
        if self.cell.kind in EVENTS:
            return [
                self.cell.kind, self.cell.loop, f"{100 * self.cell.variation:g}", f"{self.cell.ar:g}",
                f"{100 * share(tally.covered):.1f}", "", "", f"{100 * share(tally.width):.2g}",
                f"{share(tally.steps):.0f}", f"{100 * share(tally.reached_tolerance):.0f}", *[""] * 7, *doubts,
                self.verdict(),
            ]  # fmt: skip
        return [
            f"{self.cell.kind} {self.cell.remedy}".strip(), self.cell.loop,
            f"{100 * self.cell.variation:g}", f"{self.cell.ar:g}",
            f"{100 * share(tally.covered):.1f}", f"{100 * share(tally.batch_covered):.1f}",
            f"{self.width_ratio:.2f}", f"{100 * share(tally.width):.2g}", f"{share(tally.steps):.0f}",
            f"{100 * share(tally.reached_tolerance):.0f}", f"{100 * share(tally.false_flags):.1f}",
            f"{100 * share(tally.drift_yes):.1f}", f"{100 * share(tally.drift_no):.1f}",
            f"{100 * share(unknown):.0f}", "yes" if self.detectable else "no",
            f"{100 * share(tally.several_levels):.1f}",
            f"{100 * share(tally.unsteady):.1f}" if self.cell.kind == "switch" else "", "", "", doubts[2],
            self.verdict(),
        ]  # fmt: skip


def at_most(count: int, total: int, share: float) -> float:
    """The probability of no more than this count among so many, each with this probability."""
    if share >= 1.0:
        return float(count >= share * total)
    if share <= 0.0:
        return 1.0
    logs = (
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * math.log(share) + (total - k) * math.log1p(-share)
        for k in range(count + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def chance_of_a_gate(series: int, cells: int) -> float | None:
    """With which each gate may be missed by chance; None with enough series."""
    return None if series >= ENOUGH_SERIES else FAMILY_WISE / (GATES_OF_A_CELL * max(cells, 1))


def how_it_is_judged(series: int, cells: int) -> str:
    """For a person, what a miss means at this size."""
    chance = chance_of_a_gate(series, cells)
    if chance is None:
        return f"{series} series per cell: a share beyond its gate is a miss."
    shown = next((count for count in range(series, -1, -1) if at_most(count, series, COVERAGE_GATE) < chance), None)
    least = "no coverage is low enough here" if shown is None else f"coverage of {100 * shown / series:.0f} % or less"
    return (
        f"{series} series per cell, fewer than {ENOUGH_SERIES}: a miss is a share significantly beyond its gate "
        f"(binomial, {100 * FAMILY_WISE:g} % over all cells together). "
        f"For the gate of {100 * COVERAGE_GATE:g} % that is: {least}."
    )


HEADER = [
    "scenario", "loop", "CV %", "AR", "covered %", "20 batches %", "width ratio", "half width %", "steps",
    "in tol. %", "false flags %", "drift yes %", "drift no %", "drift unknown %", "detectable",
    "levels > 1 %", "marked %", "contained %", "told %", "doubted %", "gate",
]  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *(row.columns() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
