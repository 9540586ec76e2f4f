"""Make the records that results/ holds of a device: warm the compiler's cache in parallel, then run trials one by one.

    python scripts/device_results.py SUITE OUT [--part 1/3] [--repeats N] [--warm N] [--limit SECONDS] [--only WORD]
                                     [setting=value]
    python scripts/device_results.py scripts/trials/forms.txt results/h200/forms

A file of trials, as those in scripts/trials, takes the place of a suite: a line each, in the words of `prony run`.
A trial of which OUT has as many records as repeats were asked for is passed over, so that the same command goes on
where the last one ended.
Compiling takes most of a run's time and hardly any of the device, so every trial is first compiled, several at
once. The runs that count come after, alone, in fresh processes. What is bulky (step series, samples) is left out of
the copy in OUT; in it the home directory is written as ~, and paths in the working folder, and in that of the runs, as
they are seen from there.
The run folders themselves stay in a temporary folder, which is named at the end. Exit 1: a run failed.
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

from prony.plan.request import parse_trial
from prony.plan.suites import load_suites
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

KEPT = ("record.json", "plan.json", "facts.json", "device.json", "effective.json", "power.json", "rank0.log")
SAMPLES = "power.csv"  # what energy figures rest on: kept, packed


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        trials = trials_of(options)
    except RequestError as error:
        print(f"device_results.py: {error}", file=sys.stderr)
        return 2
    there = Counter(json.loads(path.read_text())["trial"]["hash"] for path in options.out.glob("*/record.json"))
    trials = [trial for trial in trials if there[trial.hash] < options.repeats]
    end = time.monotonic() + options.limit
    place = Path(tempfile.mkdtemp(prefix="prony-results-"))
    if options.warm:
        began = time.monotonic()
        with ThreadPoolExecutor(options.warm) as pool:
            reasons = list(pool.map(lambda trial: warm(trial, place), trials))
        print(f"warmed {reasons.count('')} of {len(trials)} trials in {time.monotonic() - began:.0f} s", flush=True)
        for trial, reason in zip(trials, reasons, strict=True):
            if reason:
                print(f"not warmed: {trial}: {reason}", flush=True)
    failed = 0
    for repeat in range(options.repeats):
        for trial in trials:
            if there[trial.hash] > repeat:
                continue
            began = time.monotonic()
            if began > end:
                print(f"not started within {options.limit:.0f} s: {trial}", flush=True)
                continue
            reason = run(trial, place / "runs", ["--max-time", options.max_time])
            failed += bool(reason)
            print(f"{trial}: {reason or 'exit 0'}, {time.monotonic() - began:.0f} s", flush=True)
            keep(place / "runs", options.out)  # after each: what was measured must outlast a time limit
    print(f"run folders: {place / 'runs'}")
    return 1 if failed else 0


def trials_of(options: argparse.Namespace) -> list[Trial]:
    """What was asked for, or what of it there is not: a job that does nothing costs as much as one that does."""
    every = list_trials(options.suite)
    part, _, parts = options.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise RequestError(f"--part {options.part} is no part: 1/3 is the first of three")
    named = [trial for trial in every if any(word in str(trial) for word in options.only or [""])]
    if not named:
        raise RequestError(f"no trial of {options.suite} has {' or '.join(options.only)}; there are\n  "
                           + "\n  ".join(map(str, every)))  # fmt: skip
    return [with_settings(trial, options.settings) for trial in named[int(part) - 1 :: int(parts)]]


def list_trials(suite: str) -> list[Trial]:
    if suite.endswith(".txt"):
        return read_trials(Path(suite))
    suites = load_suites()
    if suite not in suites:
        raise unknown("suite", suite, suites)
    return [entry.trial for entry in suites[suite].trials]


def read_trials(path: Path) -> list[Trial]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        target, *words = line.partition("#")[0].split() or [""]
        try:
            found += [parse_trial(target, words)] if target else []
        except RequestError as error:
            raise RequestError(f"{path}:{number}: {error}") from error
    return found


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="its name, or a file of trials that ends in .txt")
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", help="on top of each trial's own")
    parser.add_argument("--part", default="1/1", help="which of so many parts of the suite")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--warm", type=int, default=0, help="compile so many trials at once before; 0: none")
    parser.add_argument("--only", action="append", help="trials whose words hold this")
    parser.add_argument("--max-time", default="20s")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no trial after so many seconds")
    return parser.parse_intermixed_args(arguments)


def with_settings(trial: Trial, words: list[str]) -> Trial:
    for word in words:
        if "=" not in word:
            raise RequestError(f"{word} is no setting=value")
    more = dict(word.split("=", 1) for word in words)
    return Trial(trial.workload, find_workload(trial.workload).parse({**trial.settings, **more}))


def run(trial: Trial, out: Path, more: list[str]) -> str:
    """Nothing when all is well, else how it ended and the last that was said of it."""
    argv = [sys.executable, "-m", "prony", "run", *str(trial).split(), "--out", str(out), *more]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    said = done.stderr.strip().splitlines() or ["nothing was said"]
    return f"exit {done.returncode} ({said[-1].removeprefix(f'{trial}: ')})" if done.returncode else ""


def warm(trial: Trial, place: Path) -> str:
    own = Path(tempfile.mkdtemp(dir=place))  # several at once, each with an index of its own
    length = [name for name in ("epochs", "until") if name in trial.settings]
    short = Trial(trial.workload, {name: value for name, value in trial.settings.items() if name not in length})
    reason = run(with_settings(short, ["steps=2"]), own / "runs", ["--no-energy"])
    shutil.rmtree(own, ignore_errors=True)
    return reason


def keep(runs: Path, out: Path) -> None:
    for record in runs.glob("*/record.json"):
        goal = out / record.parent.name
        goal.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (record.parent / name).exists():
                text = (record.parent / name).read_text(errors="replace")
                for place, shown in ((runs, ""), (Path.cwd(), ""), (Path.home(), "~/")):
                    text = text.replace(f"{place}/", shown)
                (goal / name).write_text(text)
        samples, packed = record.parent / SAMPLES, goal / f"{SAMPLES}.gz"
        if samples.exists() and not packed.exists():
            packed.write_bytes(gzip.compress(samples.read_bytes(), mtime=0))


if __name__ == "__main__":
    sys.exit(main())
