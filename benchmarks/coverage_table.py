"""The table of benchmarks/coverage.py: what is counted in a cell, and what its gate asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from coverage_series import EVENTS, Cell
from prony_node.stats import StopRule

COVERAGE_GATE, COVERAGE_GATE_AR_09 = 0.93, 0.90
TOLD_GATE, DOUBT_GATE = 0.90, 0.05
WIDTH_GATE, FLAG_GATE, FALSE_FLAG_GATE = 1.5, 0.95, 0.05


@dataclass
class Tally:
    """Sums over the series of a cell; two of them add up field by field."""

    series: int = 0
    covered: int = 0
    batch_covered: int = 0
    width: float = 0.0
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
        tally = self.tally
        if self.cell.kind in EVENTS:
            return ["not told"] if tally.contained and tally.told < TOLD_GATE * tally.contained else []
        if self.cell.kind == "switch":
            told = self.share(tally.unsteady) >= FLAG_GATE  # in noise a jump may pass for a drift: it is marked
            return [] if told or not self.jump_visible else ["not marked"]
        least = COVERAGE_GATE_AR_09 if self.cell.ar == 0.9 else COVERAGE_GATE
        found = []
        if self.share(tally.covered) < least:
            found.append("coverage")
        if self.width_ratio > WIDTH_GATE:
            found.append("width")
        if self.share(tally.false_flags) > FALSE_FLAG_GATE:
            found.append("false flags")
        if self.detectable and self.share(tally.drift_yes) < FLAG_GATE:
            found.append("drift missed")
        if self.never_doubted and self.share(tally.doubted) > DOUBT_GATE:
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


HEADER = [
    "scenario", "loop", "CV %", "AR", "covered %", "20 batches %", "width ratio", "half width %", "steps",
    "in tol. %", "false flags %", "drift yes %", "drift no %", "drift unknown %", "detectable",
    "levels > 1 %", "marked %", "contained %", "told %", "doubted %", "gate",
]  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *(row.columns() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
