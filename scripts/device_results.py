"""Make the records that results/ holds of a device: warm the compiler's cache in parallel, then run trials one by one.

    python scripts/device_results.py SUITE OUT [--part 1/3] [--repeats N] [--warm N] [--limit SECONDS] [--only WORD]
                                     [setting=value]

A trial of which OUT has as many records as repeats were asked for is passed over, so that the same command goes on
where the last one ended.
Compiling takes most of a run's time and hardly any of the device, so every trial is first compiled, several at
once. The runs that count come after, alone, in fresh processes. What is bulky (step series, samples) is left out of
the copy in OUT; in it the home directory is written as ~, and paths in the working folder as they are seen from there.
The run folders themselves stay in a temporary folder, which is named at the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prony.plan.suites import load_suites
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

KEPT = ("record.json", "plan.json", "facts.json", "device.json", "effective.json", "power.json", "rank0.log")
SAMPLES = "power.csv"  # what energy figures rest on: kept, packed


def main() -> int:
    options = read_options()
    part, parts = (int(number) for number in options.part.split("/"))
    trials = [entry.trial for entry in load_suites()[options.suite].trials]
    if options.only:
        trials = [trial for trial in trials if any(word in str(trial) for word in options.only)]
    trials = trials[part - 1 :: parts]
    trials = [with_settings(trial, options.settings) for trial in trials]
    there = Counter(json.loads(path.read_text())["trial"]["hash"] for path in options.out.glob("*/record.json"))
    trials = [trial for trial in trials if there[trial.hash] < options.repeats]
    end = time.monotonic() + options.limit
    place = Path(tempfile.mkdtemp(prefix="prony-results-"))
    if options.warm:
        began = time.monotonic()
        with ThreadPoolExecutor(options.warm) as pool:
            codes = list(pool.map(lambda trial: warm(trial, place), trials))
        print(f"warmed {codes.count(0)} of {len(trials)} trials in {time.monotonic() - began:.0f} s", flush=True)
    for repeat in range(options.repeats):
        for trial in trials:
            if there[trial.hash] > repeat:
                continue
            began = time.monotonic()
            if began > end:
                print(f"not started within {options.limit:.0f} s: {trial}", flush=True)
                continue
            code = run(trial, place / "runs", ["--max-time", options.max_time])
            print(f"{trial}: exit {code}, {time.monotonic() - began:.0f} s", flush=True)
            keep(place / "runs", options.out)  # after each: what was measured must outlast a time limit
    print(f"run folders: {place / 'runs'}")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", help="on top of each trial's own")
    parser.add_argument("--part", default="1/1", help="which of so many parts of the suite")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--warm", type=int, default=0, help="compile so many trials at once before; 0: none")
    parser.add_argument("--only", action="append", help="trials whose words hold this")
    parser.add_argument("--max-time", default="20s")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no trial after so many seconds")
    return parser.parse_intermixed_args()


def with_settings(trial: Trial, words: list[str]) -> Trial:
    more = dict(word.split("=", 1) for word in words)
    return Trial(trial.workload, {**trial.settings, **find_workload(trial.workload).parse(more)})


def run(trial: Trial, out: Path, more: list[str]) -> int:
    argv = [sys.executable, "-m", "prony", "run", *str(trial).split(), "--out", str(out), *more]
    return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def warm(trial: Trial, place: Path) -> int:
    own = Path(tempfile.mkdtemp(dir=place))  # several at once, each with an index of its own
    code = run(with_settings(trial, ["steps=2"]), own / "runs", ["--no-energy"])
    shutil.rmtree(own, ignore_errors=True)
    return code


def keep(runs: Path, out: Path) -> None:
    for record in runs.glob("*/record.json"):
        goal = out / record.parent.name
        goal.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (record.parent / name).exists():
                text = (record.parent / name).read_text(errors="replace")
                (goal / name).write_text(text.replace(f"{Path.cwd()}/", "").replace(f"{Path.home()}/", "~/"))
        samples, packed = record.parent / SAMPLES, goal / f"{SAMPLES}.gz"
        if samples.exists() and not packed.exists():
            packed.write_bytes(gzip.compress(samples.read_bytes(), mtime=0))


if __name__ == "__main__":
    sys.exit(main())
