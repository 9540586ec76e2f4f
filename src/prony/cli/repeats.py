"""What several runs of a trial say together: over its repeats, and over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prony.analysis.spread import SPREAD, Group, Spread, groups
from prony.cli.execute import Outcome
from prony.report.numbers import format_number, format_rate, format_share
from prony.report.spread_lines import SPREAD_COLUMNS, WIDEST, spread_notes, spread_row, spread_title
from prony_node.contract.record import window_of
from prony_node.stats import between_run

REPEATED = ("throughput", "samples_per_wh")  # ratios: their repeats are averaged on the log scale
LEARNED = tuple(name for name in SPREAD if name not in REPEATED)


def print_repeats(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Each trial that has several runs: over seeds where it has several, over repeats where not."""
    for group in groups([outcome.record for outcome in outcomes]):
        if len(group.records) < 2:
            continue
        if len(group.seeds) > 1:
            _print_seeds(console, group)
        else:
            _print_runs(console, group)


def _print_seeds(console: Console, group: Group) -> None:
    _say(console, [spread_title(group)])
    _print_spreads(console, group.spreads, "seeds")
    _say(console, [*_within(group, "throughput"), *(f"  {note}" for note in spread_notes(group))])


def _print_runs(console: Console, group: Group) -> None:
    """Within-run and between-run intervals, apart: a longer run does not give the second."""
    metrics = [record["metrics"] for record in group.records]
    lines = []
    for name in REPEATED:
        between = _between(name, metrics)
        lines += [*between, *_within(group, name)] if between else []
    learned = [spread for spread in group.spreads if spread.name in LEARNED and spread.count > 1]
    if not lines and not learned:
        return
    _say(console, [spread_title(group), *lines])
    if learned:
        _print_spreads(console, learned, "runs")
        _say(console, [f"  {note}" for note in spread_notes(group)])


def _print_spreads(console: Console, spreads: Sequence[Spread], counted: str) -> None:
    """A line a metric; a narrow terminal breaks names rather than numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for title in (*SPREAD_COLUMNS, counted):
        table.add_column(title.replace(" ", "\n", 1) if title == WIDEST else title, justify="right", no_wrap=True)
    for spread in spreads:
        table.add_row(*map(Text, spread_row(spread)))
    console.print(Padding(table, (0, 0, 0, 2)))


def _between(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """One metric over repeats: its interval between runs."""
    known = [run[name] for run in runs if (run.get(name) or {}).get("value")]
    if len(known) < 2:
        return []
    between = between_run([float(metric["value"]) for metric in known])
    if between.low is None or between.high is None:
        return []
    edges = f"{format_number(between.low)} to {format_number(between.high)}"
    return [f"  between runs: {format_rate(between.mean, known[0].get('unit'))}, 95 % interval {edges}"]


def _within(group: Group, name: str) -> list[str]:
    """The widest interval within a run."""
    metrics = [record["metrics"].get(name) or {} for record in group.records]
    inside = [wide for metric in metrics if (wide := _relative_half_width(metric)) is not None]
    shortest = min((window for one in group.records if (window := window_of(one))), default=None)
    length = f", in {shortest:.2g} s or more" if shortest and name == "throughput" else ""
    return [f"  within a run: 95 % interval of ± {format_share(max(inside), 2)} at most{length}"] if inside else []


def _relative_half_width(rate: dict[str, Any]) -> float | None:
    if not rate.get("value") or rate.get("low") is None or rate.get("high") is None:
        return None
    return float(max(rate["high"] - rate["value"], rate["value"] - rate["low"]) / rate["value"])


def _say(console: Console, lines: Sequence[str]) -> None:
    if lines:
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
