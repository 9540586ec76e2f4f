"""How much do true repeats vary between runs, and how many pairs of them would `prony compare` call different?

    python scripts/between_runs.py FOLDER [FOLDER...]

Reads every record.json below the folders. Repeats are good runs with the same workload, effective settings, GPU and
commit. Prints the fit behind the prior in `prony.analysis.variation` and the count of pairs that are declared
different; results/notes/statistics.md quotes both. Runs whose compile cache was in another state than that of the
others are left out of the fit (a named difference), and so are runs given with --leave-out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony.analysis.compare import FASTER, SLOWER, compare
from prony.analysis.sentences import sentences
from prony.analysis.summary import cache_states, settings_of
from prony.analysis.variation import NORMAL, repeats_of
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, load_record

STEP = 0.15  # of the grid of log variances that the fit integrates over
SCALES = [part * 1e-4 for part in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30)]
DEGREES = (0.5, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Group:
    """Variance of log rates, its degrees of freedom, and the mean squared standard error of the runs themselves."""

    variance: float
    degrees: int
    within: float


def read_groups(folders: Iterable[Path]) -> list[list[Record]]:
    """Groups of two or more true repeats."""
    found: dict[str, list[Record]] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("record.json")):
        try:
            record = load_record(path.parent)
        except RequestError:
            continue
        if record is None or not repeats_of([record]):
            continue
        devices, commit = [device.uuid for device in record.devices], record.facts.source.commit
        key = json.dumps([record.trial.workload, settings_of(record), devices, commit], sort_keys=True, default=str)
        found.setdefault(key, []).append(record)
    return [records for records in found.values() if len(records) > 1]


def group_of(records: Sequence[Record]) -> Group:
    rates = [rate for record in records if (rate := record.metric("throughput")) is not None]
    logs = [math.log(rate.value or 0.0) for rate in rates]
    mean = math.fsum(logs) / len(logs)
    errors = [0.5 * math.log((rate.high or rate.low) / rate.low) / NORMAL if rate.low else 0.0 for rate in rates]
    variance = max(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1), 1e-10)
    return Group(variance, len(logs) - 1, math.fsum(error**2 for error in errors) / len(errors))


def log_likelihood(groups: Sequence[Group], scale: float, degrees: float, within: float) -> float:
    """Of variances that are a scaled inverse chi-square draw, plus `within` squared times the run's own."""
    grid = [math.exp(STEP * at) for at in range(-80, 60)]
    half = degrees / 2
    prior = [
        STEP * math.exp(half * math.log(half) - math.lgamma(half) - half * math.log(one) - half / one) for one in grid
    ]
    total = 0.0
    for group in groups:
        k = group.degrees / 2
        seen = 0.0
        for one, weight in zip(grid, prior, strict=True):
            ratio = k * group.variance / (one * scale**2 + within**2 * group.within)
            seen += weight * math.exp(k * math.log(ratio) - math.lgamma(k) - ratio)
        total += math.log(seen)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--leave-out", default="", metavar="ENDS", help="ends of ids, with commas, left out of the fit")
    options = parser.parse_args(arguments)
    left_out = tuple(filter(None, options.leave_out.split(",")))
    groups = read_groups(options.folders)
    if not groups:
        parser.error("no repeats below these folders; `prony store import ARCHIVE --runs FOLDER` unpacks an archive")
    pairs = [pair for records in groups for pair in itertools.combinations(records, 2)]
    print(f"{sum(map(len, groups))} runs in {len(groups)} groups, {len(pairs)} pairs")
    kept = []
    for records in groups:
        alike = [
            one for one in records if cache_states([one]) in ([], ["warm"]) and not one.id.endswith(left_out or "?")
        ]
        if len(alike) > 1:
            kept.append(group_of(alike))
    print(f"fit of {sum(group.degrees + 1 for group in kept)} runs in {len(kept)} groups:")
    print("within  degrees  scale    log likelihood")
    for within in (1.0, 1.5, 2.0, 3.0):
        for degrees in DEGREES:
            best, scale = max((log_likelihood(kept, scale, degrees, within), scale) for scale in SCALES)
            print(f"{within:6g}  {degrees:7g}  {100 * scale:.3g} %  {best:10.1f}")
    pool = repeats_of(record for records in groups for record in records)
    for name, known in (("with all of them in the store", pool), ("with the prior alone", [])):
        told = [(a, b, one) for a, b in pairs if (one := compare(a, b, known)).verdict in (FASTER, SLOWER)]
        print(f"{len(told)} of {len(pairs)} pairs are called different {name}")
        for a, b, one in told:
            print(f"  {a.id} {b.id[-6:]}: {sentences(one)[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
