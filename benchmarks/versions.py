"""Compare the speed of two versions of Prony on one machine, with interleaved runs.

    python benchmarks/versions.py OLD NEW TRIALS.txt FOLDER [--pairs 3] [--warm 4] [--until SECONDS] [--least 0.99]
    python benchmarks/versions.py ../prony-before . scripts/trials/versions.txt runs/versions --until 570

OLD and NEW are checkouts. Each makes its runs with its own scripts/device_results.py, so that nothing but the code
differs. The runs of a trial alternate: old, new, new, old. Run folders go to FOLDER/old and FOLDER/new, and the same
command resumes. The ratio new / old has a 95 % CI over the pairs.

Exit code: 0 if each CI lies above --least, 1 if one does not, 3 if a trial has too few pairs to conclude.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.contract import files
from prony_node.contract.errors import EXIT_FAILED, EXIT_UNDECIDED, RequestError
from prony_node.contract.record import Record, load_record
from prony_node.stats import RatioInterval, paired_ratio

OLD, NEW = "old", "new"
ENOUGH_S = 120.0  # for one run and its start; nothing is started with less left of --until


@dataclass(frozen=True)
class Row:
    """A trial: the rates of both versions in the order of their runs, and what they say."""

    trial: str
    old: list[float | None]  # None: a run that is no good, whose pair does not count
    new: list[float | None]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return [(old, new) for old, new in zip(self.old, self.new, strict=False) if old and new]

    @property
    def ratio(self) -> RatioInterval | None:
        return paired_ratio([old for old, _ in self.pairs], [new for _, new in self.pairs])

    def line(self) -> str:
        ratio = self.ratio
        if ratio is None:
            return f"| {self.trial} | {len(self.pairs)} | - | too few pairs |"
        return f"| {self.trial} | {len(self.pairs)} | {ratio.ratio:.4f} | {ratio.low:.4f} to {ratio.high:.4f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    began = time.monotonic()
    trials = read_trials(options.trials)
    lists = write_lists(trials, options.folder)
    versions = {OLD: options.old, NEW: options.new}
    for name, tree in versions.items():
        if options.warm:
            make_runs(tree, options.trials, options.folder / name / "warm", options, repeats=0)
    for number in range(options.pairs):
        for index, one in enumerate(lists):
            for name in (OLD, NEW) if number % 2 == 0 else (NEW, OLD):
                if time.monotonic() - began + ENOUGH_S > options.until:
                    print(f"not started, no time is left: {trials[index]}, {name}, run {number + 1}", flush=True)
                    continue
                make_runs(versions[name], one, options.folder / name / str(index), options, repeats=number + 1)
    rows = [
        Row(trial, *(rates_in(options.folder / name / str(index)) for name in versions))
        for index, trial in enumerate(trials)
    ]
    print("| trial | pairs | new / old | 95 % CI |\n| --- | --- | --- | --- |")
    print("\n".join(row.line() for row in rows))
    return verdict(rows, options.least)


def verdict(rows: Sequence[Row], least: float) -> int:
    ratios = [row.ratio for row in rows]
    if any(ratio is not None and ratio.low <= least for ratio in ratios):
        return EXIT_FAILED
    return EXIT_UNDECIDED if None in ratios else 0


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout of the version to compare with")
    parser.add_argument("new", type=Path, help="checkout of the version in question")
    parser.add_argument("trials", type=Path, help="a line per trial, as in scripts/trials")
    parser.add_argument("folder", type=Path, help="where run folders go")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each trial with each version")
    parser.add_argument("--warm", type=int, default=0, help="trials to compile at once before; 0: none")
    parser.add_argument("--min-time", default="10s", help="least length of a steady window")
    parser.add_argument("--max-time", default="20s", help="most time to measure")
    parser.add_argument("--warm-time", default="8s", help="steps for this long before the window")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help="start nothing after this")
    parser.add_argument("--least", type=float, default=0.99, help="the ratio that each CI must lie above")
    options = parser.parse_args(arguments)
    for tree in (options.old, options.new):
        if not (tree / "scripts" / "device_results.py").is_file():
            parser.error(f"{tree} is no checkout of Prony: it has no scripts/device_results.py")
    return options


def read_trials(path: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


def write_lists(trials: Sequence[str], folder: Path) -> list[Path]:
    """A file for each trial, since a version makes all runs of the file that it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = [folder / f"trial-{index}.txt" for index in range(len(trials))]
    for path, trial in zip(lists, trials, strict=True):
        path.write_text(f"{trial}\n", encoding="utf-8")
    return lists


def make_runs(tree: Path, trials: Path, runs: Path, options: argparse.Namespace, repeats: int) -> None:
    """Let a version make what is missing of so many runs; its own words go to the terminal."""
    argv = [
        sys.executable, str(tree.resolve() / "scripts" / "device_results.py"),
        str(trials.resolve()), str(runs.resolve()),
        "--repeats", str(repeats), "--min-time", options.min_time, "--max-time", options.max_time,
        "--warm-time", options.warm_time, *(["--warm", str(options.warm)] if repeats == 0 else []),
    ]  # fmt: skip
    print(f"{runs}: {repeats} runs" if repeats else f"{runs}: compiling", flush=True)
    subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}, check=False)


def rates_in(runs: Path) -> list[float | None]:
    """The rates of the runs of a folder, the earliest first; None for a run that failed, or one of whose checks did."""
    return [good_rate(record) for record in sorted(records_in(runs), key=lambda one: one.started or "")]


def records_in(runs: Path) -> list[Record]:
    found = []
    for path in runs.glob(f"[!.]*/{files.RECORD}"):
        try:
            record = load_record(path.parent)
        except RequestError as error:
            print(f"{path} is left out: {error}", file=sys.stderr)
            continue
        found += [record] if record is not None else []
    return found


def good_rate(record: Record) -> float | None:
    if record.status != "ok" or record.failed_checks:
        print(f"{record.id} is left out: {record.status}, {', '.join(record.failed_checks) or 'no failed check'}")
        return None
    return record.value("throughput")


if __name__ == "__main__":
    sys.exit(main())
