"""Make the records that results/ holds of a device: fill the compile cache, then run trials one by one in rounds.

    python scripts/device_results.py SUITE RUNS [--part 1/3] [--repeats N] [--warm N] [--only WORD] [setting=value]
    python scripts/device_results.py scripts/trials/headline.txt runs/headline --repeats 3 --warm 4 \\
        --min-time 20s --max-time 45s --warm-time 6s --until 560 --pack results/h200/headline-DATE.tar.gz
    python scripts/device_results.py ... --dry-run

A file of trials, as those in scripts/trials, takes the place of a suite: a line each, in the words of `prony run`.
Round 1 runs every trial once, round 2 every trial again, and so on. Each run has fresh processes. A trial that has its
records in RUNS is passed over, so the same command resumes where the last one ended.

Compiling takes most of a first run and little of the device. So every trial is compiled before, --warm of them at once.
--until ends it all: nothing is started that would probably last longer. --pack writes the runs so far, with their step
series, as one archive after each run; `prony store import` reads it. --dry-run prints how long it would take, from the
records in results/records.jsonl. Exit 1: a run failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from results_records import LINES, Line, read_lines

from prony.engine.runs import TrialRun, first_line, plan_of
from prony.sites.local import LocalRun
from prony.store.archive import pack
from prony.study.request import parse_seconds, parse_trial
from prony.study.study import load_suites
from prony_node.contract import files
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload

RECORDS = Path(__file__).parents[1] / "results" / LINES
WARMED = ".warmed"  # hashes of the trials that were compiled, in RUNS
WARM_MEMORY_GIB = 120.0  # that trials compiled at once may take together; an H200 has 139
LONGER_WINDOW = 1.15  # of the minimum time, which the stop rule may have to exceed
LAST_RUNS = 3  # of a trial, from which its cost is taken: the code gets faster
CONTROLLER_S = 1.0  # from one run's end to the next one's start


@dataclass(frozen=True)
class Cost:
    """What a trial takes: seconds beside warm-up and window, with a cold and a warm compile cache, and memory.

    The defaults are for trials without a record.
    """

    cold_s: float = 90.0
    warm_s: float = 18.0
    memory_gib: float = 40.0


@dataclass(frozen=True)
class Task:
    """A trial to be run, and what it takes."""

    trial: Trial
    cost: Cost

    def seconds(self, stop: Stop) -> float:
        return (
            CONTROLLER_S + self.cost.warm_s + stop.warm_time_s + min(LONGER_WINDOW * stop.min_time_s, stop.max_time_s)
        )


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    options = read_options(arguments)
    try:
        stop = stop_of(options)
        known = read_lines(RECORDS) if RECORDS.exists() else []
        tasks = [Task(trial, cost_of(trial, known)) for trial in trials_of(options)]
    except RequestError as error:
        print(f"device_results.py: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        print("\n".join(forecast(tasks, options, stop)))
        return 0
    if options.warm:
        warm_all(tasks, options, began)
    failed = 0
    there, took_s = records_in(options.runs), dict[str, float]()
    for _ in range(options.repeats):
        for task in tasks:
            repeat, elapsed_s = there[task.trial.hash], time.monotonic() - began
            if repeat >= options.repeats:
                continue
            if elapsed_s + max(task.seconds(stop), took_s.get(task.trial.hash, 0.0)) > options.until:
                print(f"not started, {options.until - elapsed_s:.0f} s are left: {task.trial}", flush=True)
                continue
            reason = run(task.trial, options.runs, stop, repeat)
            there[task.trial.hash] += 1
            failed += bool(reason)
            took_s[task.trial.hash] = time.monotonic() - began - elapsed_s
            print(f"{task.trial}, run {repeat + 1}: {reason or 'good'}, {took_s[task.trial.hash]:.0f} s", flush=True)
            if options.pack:
                pack_runs(options.runs, options.pack)  # after each: what was measured must outlast a time limit
    if options.pack:
        pack_runs(options.runs, options.pack)  # also where nothing was missing
    missing = sum(max(0, options.repeats - there[task.trial.hash]) for task in tasks)
    print(f"{missing} runs are missing; run folders: {options.runs}")
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
    parser.add_argument("runs", type=Path, help="where run folders go")
    parser.add_argument("settings", nargs="*", help="on top of each trial's own")
    parser.add_argument("--part", default="1/1", help="one of several equal parts of the suite")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each trial, interleaved in rounds")
    parser.add_argument("--warm", type=int, default=0, help="trials to compile at once before; 0: none")
    parser.add_argument("--only", action="append", help="trials with this in their words")
    parser.add_argument("--min-time", default="10s", help="least length of a steady window")
    parser.add_argument("--max-time", default="20s", help="most time to measure")
    parser.add_argument("--warm-time", default="0s", help="steps for this long before the window")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help="end within this time")
    parser.add_argument("--pack", type=Path, metavar="FILE.tar.gz", help="write the runs so far as one archive")
    parser.add_argument("--dry-run", action="store_true", help="print how long it would take")
    return parser.parse_intermixed_args(arguments)


def stop_of(options: argparse.Namespace) -> Stop:
    max_s = parse_seconds(options.max_time)
    none = options.warm_time.strip() in ("0", "0s")
    return Stop(
        min_time_s=min(parse_seconds(options.min_time, "--min-time"), max_s),
        max_time_s=max_s,
        warm_time_s=0.0 if none else parse_seconds(options.warm_time, "--warm-time"),
    )


def with_settings(trial: Trial, words: list[str]) -> Trial:
    for word in words:
        if "=" not in word:
            raise RequestError(f"{word} is no setting=value")
    more = dict(word.split("=", 1) for word in words)
    return Trial(trial.workload, find_workload(trial.workload).parse({**trial.settings, **more}))


def cost_of(trial: Trial, known: Iterable[Line]) -> Cost:
    """What the last runs of the same trial took; of its workload where a trial has none."""
    of_workload = [line for line in known if line.status == "ok" and line.workload == trial.workload]
    of_trial = [line for line in of_workload if Trial(line.workload, line.settings).hash == trial.hash]

    def seconds(state: str, otherwise: float) -> float:
        for lines in (of_trial, of_workload):
            found = [(line.date, line.outside_s) for line in lines if line.compile_cache == state and line.outside_s]
            if found:
                return statistics.median(one for _, one in sorted(found)[-LAST_RUNS:])
        return otherwise

    memory = [line.memory_gib for line in of_trial if line.memory_gib is not None]
    return Cost(seconds("cold", Cost.cold_s), seconds("warm", Cost.warm_s), max(memory) if memory else Cost.memory_gib)


def records_in(runs: Path) -> Counter[str]:
    """How many runs there are of each trial; one that was interrupted is made again."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in runs.glob(f"[!.]*/{files.RECORD}")]
    return Counter(record["trial"]["hash"] for record in documents if record["status"] != "interrupted")


def run(trial: Trial, runs: Path, stop: Stop, repeat: int = 0, energy: bool = True) -> str:
    """Make one run in fresh processes; empty when all is well, else how it ended."""
    try:
        made = LocalRun(plan_of(TrialRun(trial, stop, repeat, energy)), runs)
        made.start()
        for _ in made.follow():
            pass
        record = made.collect()
    except RequestError as error:
        return str(error)
    return "" if record.status == "ok" else first_line(record)


def warm_all(tasks: list[Task], options: argparse.Namespace, began: float) -> None:
    """Compile what was not compiled here before, several trials at once as far as memory allows, the longest first."""
    options.runs.mkdir(parents=True, exist_ok=True)
    noted = options.runs / WARMED
    done = set(noted.read_text(encoding="utf-8").split()) if noted.exists() else set()
    waiting = sorted((task for task in tasks if task.trial.hash not in done), key=lambda task: -task.cost.cold_s)
    place = Path(tempfile.mkdtemp(prefix="prony-warm-"))
    room, change = Room(options.warm, WARM_MEMORY_GIB), threading.Condition()
    started = time.monotonic()

    def work() -> None:
        while True:
            with change:
                change.wait_for(lambda: not waiting or any(room.fits(task) for task in waiting))
                task = next((task for task in waiting if room.fits(task)), None)
                if task is None:
                    return
                waiting.remove(task)
                if time.monotonic() - began + task.cost.cold_s > options.until:
                    print(f"not compiled, no time is left: {task.trial}", flush=True)
                    continue
                room.take(task)
            reason = warm(task.trial, place)
            with change:
                room.give_back(task)
                change.notify_all()
                said = f"not compiled: {reason}" if reason else "compiled"
                print(f"{said}: {task.trial}, {time.monotonic() - started:.0f} s since the start", flush=True)
                if not reason:
                    with noted.open("a", encoding="utf-8") as file:
                        file.write(f"{task.trial.hash}\n")

    threads = [threading.Thread(target=work) for _ in range(min(options.warm, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.rmtree(place, ignore_errors=True)


class Room:
    """How many trials may be compiled at once, and how much memory they may take."""

    def __init__(self, places: int, memory_gib: float) -> None:
        self.places, self.memory_gib, self.taken = places, memory_gib, 0

    def fits(self, task: Task) -> bool:
        """Whether it can start now; one that is too large for the rest starts alone."""
        return self.places > 0 and (task.cost.memory_gib <= self.memory_gib or self.taken == 0)

    def take(self, task: Task) -> None:
        self.places, self.taken, self.memory_gib = (
            self.places - 1,
            self.taken + 1,
            self.memory_gib - task.cost.memory_gib,
        )

    def give_back(self, task: Task) -> None:
        self.places, self.taken, self.memory_gib = (
            self.places + 1,
            self.taken - 1,
            self.memory_gib + task.cost.memory_gib,
        )


def warm(trial: Trial, place: Path) -> str:
    """Two steps of a trial, so that its compile cache is filled; empty, or why that failed."""
    length = [name for name in ("epochs", "until") if name in trial.settings]
    short = Trial(trial.workload, {name: value for name, value in trial.settings.items() if name not in length})
    return run(with_settings(short, ["steps=2"]), place, Stop(), energy=False)


def pack_runs(runs: Path, archive: Path) -> None:
    """Every finished run, with all of its files, as one archive."""
    folders = sorted(path.parent for path in runs.glob(f"[!.]*/{files.RECORD}"))
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f".{archive.name}.part")
    with part.open("wb") as file:
        pack(folders, file)
    part.replace(archive)


def forecast(tasks: list[Task], options: argparse.Namespace, stop: Stop) -> list[str]:
    """How long the job would take, trial by trial."""
    there = records_in(options.runs)
    missing = [(task, max(0, options.repeats - there[task.trial.hash])) for task in tasks]
    width = max(len(str(task.trial)) for task in tasks)
    lines = [f"{'trial':{width}}  cold start  one run  missing runs"]
    lines += [f"{task.trial!s:{width}}  {task.cost.cold_s:8.0f} s  {task.seconds(stop):5.0f} s  {count:12}"
              for task, count in missing]  # fmt: skip
    compile_s = 0.0
    if options.warm:
        ends = [0.0] * options.warm
        for task in sorted(tasks, key=lambda task: -task.cost.cold_s):
            ends[ends.index(min(ends))] += task.cost.cold_s
        compile_s = max(ends)
        lines.append(f"to compile, {options.warm} at once: about {compile_s:.0f} s, if each takes as long as alone")
    count, runs_s = sum(one for _, one in missing), sum(one * task.seconds(stop) for task, one in missing)
    lines.append(f"{count} runs: about {runs_s:.0f} s")
    lines.append(f"together: about {(compile_s + runs_s) / 60:.1f} min")
    return lines


if __name__ == "__main__":
    sys.exit(main())
