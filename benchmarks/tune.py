"""Does `prony tune` end at the best settings, at a fraction of the machine time of a full sweep?

    python benchmarks/tune.py [SURFACE ...] [--seeds 50] [--share 0.25] [--synthetic] [--spread SHARE] [--json FILE]

A surface is a full sweep: every trial with its step series, cold start and cost (scripts/record_surface.py records
one). Each method starts from the defaults. Each of its runs draws its own stretch of the recorded steps, costs what it
cost, and differs between runs as repeats did. A walk in one process pays the process once and every size in full.

The gate of a surface for throughput, over 50 seeds: what `prony tune` keeps is within 1 % of the true best in 48, no
search takes more than 12 % of the sweep's machine time, none with its A/B more than 25 %. Where the answer is "not
decided", what is kept is the leader, and `decided` counts it out. `wrong` counts advice that is more than 1 % off.
A surface for energy is a small grid, so its gate is the first part alone, with the budget of 15 minutes that `prony
tune` has by default. The other methods take the highest value that they saw, and confirm nothing.
Without a surface: those in benchmarks/surfaces. Synthetic ones follow a law, stand for no machine and have no gate.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from prony.study.search_space import GOALS
from prony_node.contract.errors import RequestError
from tune_methods import METHODS, Method, Score
from tune_surface import LAWS, Surface, read_surface, synthesise

SURFACES = Path(__file__).parent / "surfaces"
CLOSE, GATE = 0.99, 0.96
MOST_SEARCH, MOST_TOTAL = 0.12, 0.25
ENERGY_BUDGET_S = 900.0
COLUMNS = {
    "method": 8, "within 1 %": 12, "decided": 9, "better": 8, "wrong": 7, "search": 9, "most": 8, "with A/B": 10,
    "most ": 8, "processes": 11, "worst": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A method on a surface, over all seeds. Times are shares of the sweep's."""

    surface: str
    goal: str
    method: str
    seeds: int
    close: int  # what is kept is within 1 % of the best
    decided: int
    shown: int  # something was shown to be better than the defaults
    wrong: int  # decided, and more than 1 % off
    search: float
    most_search: float
    total: float
    most_total: float
    processes: float
    worst: float


def measure(name: str, surface: Surface, method: str, function: Method, seeds: int, share: float) -> Row:
    goal = GOALS[surface.goal]
    budget_s = ENERGY_BUDGET_S if surface.goal == "energy" else share * surface.sweep_s
    scores = [function(surface, seed, budget_s, goal) for seed in range(seeds)]
    return Row(
        surface=name,
        goal=surface.goal,
        method=method,
        seeds=seeds,
        close=sum(is_close(score) for score in scores),
        decided=sum(score.decided for score in scores),
        shown=sum(score.shown for score in scores),
        wrong=sum(score.decided and not is_close(score) for score in scores),
        search=math.fsum(score.search_share for score in scores) / seeds,
        most_search=max(score.search_share for score in scores),
        total=math.fsum(score.total_share for score in scores) / seeds,
        most_total=max(score.total_share for score in scores),
        processes=sum(score.processes for score in scores) / seeds,
        worst=min(score.share_of_best for score in scores),
    )


def is_close(score: Score) -> bool:
    return score.share_of_best >= CLOSE


def holds(row: Row) -> bool:
    """Whether a row of `prony tune` on a recorded surface keeps the gate."""
    in_time = row.goal == "energy" or (row.most_search <= MOST_SEARCH and row.most_total <= MOST_TOTAL)
    return row.close >= GATE * row.seeds and in_time


def find_surfaces(paths: list[Path], synthetic: bool) -> dict[str, Surface]:
    found = {}
    for path in paths or sorted(SURFACES.glob("*.json.gz")):
        surface = read_surface(path)
        found[f"{path.name.removesuffix('.json.gz')}{' (synthetic)' if surface.synthetic else ''}"] = surface
    if synthetic:
        found |= {f"{name} (synthetic)": synthesise(law) for name, law in LAWS.items()}
    return found


def main() -> int:
    options = read_options()
    try:
        surfaces = find_surfaces(options.surfaces, options.synthetic)
        if options.spread is not None:
            surfaces = {name: surface.spread_alike(options.spread) for name, surface in surfaces.items()}
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    rows, failed = [], False
    for name, surface in surfaces.items():
        failures = sum(entry.status != "ok" for entry in surface.entries)
        print(f"\n{name}, {surface.goal}: {len(surface.entries)} trials, {failures} failed, {surface.sweep_s:.0f} s")
        print(f"  {surface.source}; {surface.told_spread()}")
        print("  " + "".join(f"{title:>{width}}" for title, width in COLUMNS.items()))
        for method, function in METHODS.items():
            row = measure(name, surface, method, function, options.seeds, options.share)
            rows.append(row)
            print(f"  {line(row)}", flush=True)
            failed |= method == "prony" and not surface.synthetic and not holds(row)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\nthe gate fails" if failed else "\nthe gate holds")
    return int(failed)


def line(row: Row) -> str:
    counts = [f"{row.close}/{row.seeds}", *map(str, (row.decided, row.shown, row.wrong))]
    shares = [f"{share:.1%}" for share in (row.search, row.most_search, row.total, row.most_total)]
    cells = [row.method, *counts, *shares, f"{row.processes:.1f}", f"{row.worst:.3f}"]
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surfaces", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--share", type=float, default=MOST_TOTAL, help="budget, as a share of the sweep's time")
    parser.add_argument("--synthetic", action="store_true", help="add the synthetic surfaces")
    parser.add_argument("--spread", type=float, help="let runs of every trial differ by this share (SD)")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    if options.seeds < 1 or not 0.0 < options.share <= 1.0 or not 0.0 <= (options.spread or 0.0) < 0.3:
        parser.error("--seeds is 1 or more, --share a part of 1, --spread 0 to less than 0.3")
    return options


if __name__ == "__main__":
    sys.exit(main())
