"""Does the 95 % interval cover? Simulated series through the shipped procedure, stop rule included.

    python benchmarks/coverage.py [--series 2000] [--jobs 2] [--cells PATTERN] [--seed 1] [--markdown FILE]

Needs numpy beside Prony. Exits with 1 when a cell misses its gate. With fewer than 2000 series a cell misses only where
its count is significantly beyond the gate, so that a quick run finds what is broken and nothing by chance. What the
columns mean, and what is simulated, is told in docs/background/statistics.md.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from coverage_series import EVENTS, SWITCH_GAP, SWITCH_WINDOW_S, Array, Cell, Series, all_cells
from coverage_table import Row, Tally, chance_of_a_gate, how_it_is_judged, table
from prony_node.measure.checks import series_checks
from prony_node.stats import Estimate, StopRule, Tracker, mean_interval, normal_quantile

RULE = StopRule()
DRIFT = RULE.drift_limit
NORMAL = normal_quantile(0.975)
CHUNK = 100


def run_until_stop(cell: Cell, series: Series) -> tuple[Array, Estimate, bool]:
    """Feed blocks until the tracker stops; the durations fed, the estimate, whether tolerance was met."""
    tracker = Tracker(rule_of(cell))
    k = cell.block_steps
    parts: list[Array] = []
    while True:
        durations = series.more(max(128, sum(map(len, parts)) // 4))
        for i, duration_s in enumerate(durations.tolist()):
            tracker.add(duration_s, k)
            if tracker.due():
                decision = tracker.decide()
                if decision.stop:
                    assert decision.estimate is not None
                    fed = np.concatenate([*parts, durations[: i + 1]])
                    return fed, decision.estimate, decision.reason.startswith("the interval")
        parts.append(durations)


def rule_of(cell: Cell) -> StopRule:
    if cell.kind == "switch":  # a change in mid-window needs a window that is known beforehand
        return StopRule(min_time_s=SWITCH_WINDOW_S, max_time_s=SWITCH_WINDOW_S)
    if cell.remedy:
        name, value = cell.remedy.split("=")
        return replace(RULE, **{name: int(value)})
    return RULE


def with_drift(cell: Cell, durations: Array, window_s: float) -> Estimate:
    """The same series with a rise of DRIFT over the window, looked at once, at the same length."""
    k = cell.block_steps
    middles = np.arange(len(durations)) + 0.5 - len(durations) / 2
    rise = DRIFT * middles * k * cell.step_s / window_s
    tracker = Tracker(rule_of(cell))
    risen = durations + cell.step_s * k * cell.true_mean * rise
    # Merged two by two as the tracker itself would do when full; only quicker.
    merge = 1
    while len(risen) // merge >= 512:
        merge *= 2
    whole = len(risen) - len(risen) % merge
    for duration_s in risen[:whole].reshape(-1, merge).sum(axis=1).tolist():
        tracker.add(duration_s, k * merge)
    found = tracker.estimate()
    assert found is not None
    return found


def twenty_batches_cover(durations: Array, block_steps: int, truth_s: float) -> bool:
    """Plain batch means over everything that was fed, for comparison."""
    batches = [float(np.mean(part)) / block_steps for part in np.array_split(durations, 20)]
    plain = mean_interval(batches, 0.95)
    return plain.low is not None and plain.high is not None and plain.low <= truth_s <= plain.high


def run_chunk(task: tuple[Cell, int, int, int]) -> tuple[Cell, Tally]:
    cell, seed, first, count = task
    tally = Tally()
    for index in range(first, first + count):
        rng = np.random.default_rng([seed, *cell.name.encode(), index])
        series = Series(cell, rng)
        durations, found, reached = run_until_stop(cell, series)
        truth_s = cell.step_s * cell.true_mean
        doubted = any(check.level in ("warn", "fail") for check in series_checks(found, rule_of(cell), fixed=False))
        tally.doubted += doubted
        if series.has_event(found.cut_steps, found.cut_steps + found.steps):
            tally.contained += 1
            tally.told += doubted or found.step_time_low_s <= truth_s <= found.step_time_high_s
        if cell.kind in EVENTS:
            tally.series += 1
            tally.covered += found.step_time_low_s <= truth_s <= found.step_time_high_s
            tally.width += found.relative_half_width
            tally.steps += found.steps + found.cut_steps
            tally.reached_tolerance += reached
            continue
        error = math.sqrt(cell.mean_variance(found.steps)) / cell.true_mean
        drifting = with_drift(cell, durations, found.window_s)
        tally.series += 1
        # By the series alone: the floor of short windows would cover for a method that does not.
        tally.covered += abs(math.log(truth_s / found.step_time_s)) <= math.log1p(found.sampling_half_width)
        tally.batch_covered += twenty_batches_cover(durations, cell.block_steps, truth_s)
        tally.width += found.sampling_half_width
        tally.width_squared += found.sampling_half_width**2
        tally.ideal_width += NORMAL * error
        tally.steps += found.steps + found.cut_steps
        tally.reached_tolerance += reached
        tally.false_flags += found.drifting == "yes"
        tally.drift_yes += drifting.drifting == "yes"
        tally.drift_no += drifting.drifting == "no"
        tally.ideal_power += 0.5 * math.erfc((NORMAL - DRIFT / (math.sqrt(12.0) * error)) / math.sqrt(2.0))
        tally.several_levels += found.levels > 1
        tally.unsteady += found.levels > 1 or found.drifting == "yes"
        tally.ideal_jump += SWITCH_GAP / (2.0 * error)
    return cell, tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage of Prony's intervals on simulated step times.")
    parser.add_argument("--series", type=int, default=2000, help="series a cell")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cells", default="", help="only cells whose name matches this expression")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    cells = [cell for cell in all_cells() if re.search(options.cells, cell.name)]
    tasks = [
        (cell, options.seed, first, min(CHUNK, options.series - first))
        for cell in cells
        for first in range(0, options.series, CHUNK)
    ]
    tallies = {cell: Tally() for cell in cells}
    started = time.monotonic()
    with Pool(options.jobs) as pool:
        for done, (cell, tally) in enumerate(pool.imap_unordered(run_chunk, tasks), start=1):
            tallies[cell] += tally
            print(
                f"\r{done}/{len(tasks)} {time.monotonic() - started:.0f} s {cell.name:40}",
                end="",
                file=sys.stderr,
            )
    print(file=sys.stderr)
    chance = chance_of_a_gate(options.series, len(cells))
    rows = [Row(cell, tally, chance) for cell, tally in tallies.items()]
    text = table(rows)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    print(how_it_is_judged(options.series, len(rows)))
    missed = sum(row.fails for row in rows)
    print(f"{len(rows)} cells: {len(rows) - missed} pass, {missed} miss")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
