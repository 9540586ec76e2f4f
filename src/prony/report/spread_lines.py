"""What several runs of a trial say together, as texts: for the terminal and for the page."""

from __future__ import annotations

from prony.analysis.spread import Group, Spread
from prony.report.numbers import NOTHING, format_number
from prony_node.contract.trial import Trial

WIDEST = "standard deviation"
SPREAD_COLUMNS = ("mean", "95 % of the mean", WIDEST, "least to most")
NAMED = 10  # seeds


def spread_title(group: Group) -> str:
    """Which runs these are: wideresnet batch_size=32: 3 seeds (0, 1, 2)."""
    trial, runs, seeds = Trial(group.workload, group.settings), len(group.records), group.seeds
    if len(seeds) == 1:
        learned = any(spread.name == "quality" for spread in group.spreads)
        seed = f" of seed {seeds[0]}" if learned else ""
        return f"{trial}: {runs} runs{seed} in fresh processes"
    named = ", ".join(map(str, seeds)) if len(seeds) <= NAMED else f"{seeds[0]} to {seeds[-1]}"
    more = f", {runs} runs; those of a seed are averaged first" if runs > len(seeds) else ""
    return f"{trial}: {len(seeds)} seeds ({named}){more}"


def spread_row(spread: Spread) -> list[str]:
    """A metric with its unit, then a cell for each column, then of how many seeds or runs."""
    label = spread.unit if spread.name == "quality" else f"{spread.name.replace('_', ' ')}, {spread.unit}"
    deviation = NOTHING if spread.deviation is None else format_number(spread.deviation, 2)
    interval, edges = _range(spread.low, spread.high), _range(spread.least, spread.most)
    return [label, format_number(spread.mean), interval, deviation, edges, str(spread.count)]


def spread_notes(group: Group) -> list[str]:
    """What the reader of a mean must know: who is not in it."""
    missed = len(group.records) - group.reached
    notes = []
    if group.until and missed:
        notes.append(
            f"{missed} of {len(group.records)} runs did not reach {group.until}: "
            "time and energy to it are of the others alone, which flatters both"
        )
    if group.left_out:
        notes.append(
            f"{group.left_out} more failed or ended early and {'is' if group.left_out == 1 else 'are'} left out"
        )
    return notes


def _range(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{format_number(low)} to {format_number(high)}"
