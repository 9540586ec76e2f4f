"""Does the search of `prony tune` find the best settings with a quarter of the machine time of a full sweep?

    python benchmarks/tune.py [SURFACE ...] [--starts 50] [--share 0.25] [--parts] [--synthetic]
                              [--spread SHARE] [--json FILE]

A surface is a sweep in full: every trial with its step series, cold start and cost (scripts/record_surface.py makes one
on a machine). Each method starts from random trials of it and is given `share` of the sweep's machine time; each of its
runs draws its own stretch of the recorded steps, costs the recorded cold start, and differs between runs as repeats
did.
A start succeeds when what is recommended is within 3 % of the true best and the time was kept; the gate is 45 of 50.
The time of Prony's search is given without and with the A/B that ends it; success counts it with.
Without a surface: those in benchmarks/surfaces, and the synthetic ones, which follow a law and stand for no machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from prony_node.contract.errors import RequestError
from tune_methods import METHODS, PARTS, Method, Score
from tune_surface import LAWS, Surface, read_surface, synthesise

SURFACES = Path(__file__).parent / "surfaces"
CLOSE, GATE = 0.97, 0.9
COLUMNS = {
    "method": 22, "success": 9, "close": 7, "search": 9, "with A/B": 10, "most": 8, "runs": 7, "median": 8, "worst": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A method on a surface, over all starts."""

    surface: str
    method: str
    starts: int
    succeeded: int
    close: int  # within 3 %, whatever it took
    search_share: float
    total_share: float
    most_share: float
    runs: float
    median: float
    worst: float


def measure(name: str, surface: Surface, method: str, function: Method, starts: int, share: float) -> Row:
    scores = [function(surface, seed, share * surface.sweep_s) for seed in range(starts)]
    ends = sorted(score.share_of_best for score in scores)
    return Row(
        surface=name,
        method=method,
        starts=starts,
        succeeded=sum(is_success(score, share) for score in scores),
        close=sum(score.share_of_best >= CLOSE for score in scores),
        search_share=math.fsum(score.search_share for score in scores) / starts,
        total_share=math.fsum(score.total_share for score in scores) / starts,
        most_share=max(score.total_share for score in scores),
        runs=sum(score.runs for score in scores) / starts,
        median=ends[len(ends) // 2],
        worst=ends[0],
    )


def is_success(score: Score, share: float) -> bool:
    return score.share_of_best >= CLOSE and score.total_share <= share


def find_surfaces(paths: list[Path], synthetic: bool) -> dict[str, Surface]:
    found = {}
    for path in paths or sorted(SURFACES.glob("*.json.gz")):
        surface = read_surface(path)
        found[f"{path.name.removesuffix('.json.gz')}{' (synthetic)' if surface.synthetic else ''}"] = surface
    if synthetic or not paths:
        found |= {f"{name} (synthetic)": synthesise(law) for name, law in LAWS.items()}
    return found


def main() -> int:
    options = read_options()
    methods = METHODS | (PARTS if options.parts else {})
    if importlib.util.find_spec("optuna") is None:
        methods = {name: method for name, method in methods.items() if "TPE" not in name}
        print("optuna is not installed (it is in the extra dev): TPE is left out", file=sys.stderr)
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
        print(f"\n{name}: {len(surface.entries)} trials, {failures} of them failed, {surface.sweep_s:.0f} s in all")
        print(f"  {surface.source}; {surface.told_spread()}")
        print("  " + "".join(f"{title:>{width}}" for title, width in COLUMNS.items()))
        for method, function in methods.items():
            row = measure(name, surface, method, function, options.starts, options.share)
            rows.append(row)
            print(f"  {line(row)}", flush=True)
            failed |= method == "prony" and row.succeeded < GATE * row.starts
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\nthe gate fails" if failed else "\nthe gate holds")
    return int(failed)


def line(row: Row) -> str:
    shares = [f"{share:.1%}" for share in (row.search_share, row.total_share, row.most_share)]
    ends = [f"{row.runs:.1f}", f"{row.median:.3f}", f"{row.worst:.3f}"]
    cells = [row.method, f"{row.succeeded}/{row.starts}", str(row.close), *shares, *ends]
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surfaces", nargs="*", type=Path)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--parts", action="store_true", help="also Prony's search without one of its parts")
    parser.add_argument("--synthetic", action="store_true", help="the synthetic surfaces beside those that are named")
    parser.add_argument("--spread", type=float, help="runs of every trial differ by so much, whatever repeats did")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    if options.starts < 1 or not 0.0 < options.share <= 1.0 or not 0.0 <= (options.spread or 0.0) < 0.3:
        parser.error("--starts is 1 or more, --share a part of 1, --spread 0 to less than 0.3")
    return options


if __name__ == "__main__":
    sys.exit(main())
