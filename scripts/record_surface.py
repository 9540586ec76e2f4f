"""Record a surface for benchmarks/tune.py: a full sweep of a workload, each trial with its step series and cost.

    python scripts/record_surface.py WORKLOAD OUT.json.gz [setting=value,value ...] [--seconds 4] [--limit SECONDS]
                                     [--warm N] [--repeats N] [--goal energy]

Every combination is run once by Prony itself, in fresh processes and in an order of chance, and written to OUT after
each run: the same command goes on where the last one ended. A setting with one value is fixed. Without settings a grid
for one large GPU is taken. When all trials are there, a few are repeated, so that the replay differs between runs as
they did. `--warm` compiles before, so many trials at once: the cold starts are then those of a warm cache, and the
surface says so. What ran out of memory stands for the larger batches of its series, which are not run.
With `--goal energy` each run measures for 10 s, which a counter of energy needs, and the surface is replayed for that
goal. A surface for energy on one GPU, in less than six minutes:

    python scripts/record_surface.py gpt-117m benchmarks/surfaces/gpt-117m-energy-h200.json.gz batch_size=8..128 \
        compile=off,default --goal energy --warm 5 --repeats 1 --limit 330
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from prony.study.search_space import Candidate, Space, make_space, split_searched, trial_of
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload
from tune_surface import Entry, Surface, read_surface, write_surface

# Of 64 trials each, so that a quarter of the sweep is more than a handful of runs.
GRIDS = {
    "wideresnet": ["batch_size=16..2048", "graphs=on,off", "compile=off,default",
                   "memory_format=contiguous,channels_last"],
    "resnet50": ["batch_size=16..2048", "graphs=on,off", "compile=off,default",
                 "memory_format=contiguous,channels_last"],
    "gpt-117m": ["batch_size=2..256", "graphs=on,off", "compile=off,default", "fused=on,off"],
}  # fmt: skip
SIZE_PHASES = ("build", "data", "warm_up")  # beside cold start: what each size of a walk pays
NOT_COMPILED = ("graphs", "fused")  # how a step is launched and its weights are updated: no part of compiled code


def main() -> int:
    try:
        return record(read_options())
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2


def record(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.limit
    workload = find_workload(options.workload)
    words, lists = split_searched(workload, options.settings or GRIDS.get(options.workload, []))
    fixed = workload.parse(words)
    space = make_space(workload, fixed, lists)
    surface = open_surface(options.out, workload, fixed, space, options.goal)
    place = Path(tempfile.mkdtemp(prefix="prony-surface-"))
    left = [one for one in space.candidates if find(surface, one) is None]
    random.Random(1).shuffle(left)
    if options.warm and left:
        began = time.monotonic()
        apart = compiled_apart(fixed, left)
        with ThreadPoolExecutor(options.warm) as pool:
            done = list(pool.map(lambda one: warm(workload, fixed, one, place), apart))
        again = [one for one, well in zip(apart, done, strict=True) if not well]  # not enough memory for all at once
        lost = [one.key for one in again if not warm(workload, fixed, one, place)]
        took_s = time.monotonic() - began
        print(f"compiled {len(apart) - len(lost)} of {len(apart)} trials in {took_s:.0f} s", flush=True)
        for key in lost:
            print(f"not compiled: {key}", flush=True)
    for number, candidate in enumerate(left, start=1):
        if time.monotonic() > end:
            print(f"{len(left) - number + 1} trials are left: the same command goes on", flush=True)
            return 0
        inferred = out_of_memory_before(surface, candidate)
        entry, about = (inferred, {}) if inferred else record_one(workload, fixed, candidate, place, options.seconds)
        surface = with_entry(surface, entry, about, options)
        write_surface(surface, options.out)
        said = f"{entry.status} {entry.rate:.6g}, {entry.cost_s:.1f} s"
        print(f"[{number}/{len(left)}] {candidate.key}: {said}", flush=True)
    surface = repeat(surface, workload, fixed, place, options, end)
    write_surface(surface, options.out)
    print(f"{len(surface.entries)} trials, {surface.sweep_s:.0f} s, {options.out.stat().st_size} bytes; {place}")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seconds", type=float, help="measured time of each run (4, for energy 10)")
    parser.add_argument("--goal", choices=("throughput", "energy"), default="throughput")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no run after so many seconds")
    parser.add_argument("--warm", type=int, default=0, help="compile so many trials at once before")
    parser.add_argument("--repeats", type=int, default=2, help="more runs of three trials at the end")
    options = parser.parse_intermixed_args()
    options.seconds = options.seconds or (10.0 if options.goal == "energy" else 4.0)
    return options


def open_surface(out: Path, workload: Workload, fixed: dict[str, Any], space: Space, goal: str) -> Surface:
    """What is there already, or an empty surface of this space."""
    lists = {name: list(values) for name, values in space.lists.items()}
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        nothing = "no repeats were made"
        return Surface(workload.name, workload.unit, False, "", fixed, lists, 0.0, nothing, None, [], goal=goal)
    surface = read_surface(out)
    if (surface.workload, surface.lists, surface.fixed, surface.goal) != (workload.name, lists, fixed, goal):
        raise RequestError(f"{out} is of another grid: {surface.workload} {surface.fixed} {surface.lists}")
    return surface


def find(surface: Surface, candidate: Candidate) -> Entry | None:
    return next((one for one in surface.entries if Candidate(tuple(one.settings.items())).key == candidate.key), None)


def out_of_memory_before(surface: Surface, candidate: Candidate) -> Entry | None:
    """A smaller batch of the same series that ran out stands for this one: not run, at the cost that it had."""
    for entry in surface.entries:
        other = Candidate(tuple(entry.settings.items()))
        smaller = (other.batch or math.inf) < (candidate.batch or 0.0)
        if entry.kind == "out-of-memory" and other.series == candidate.series and smaller:
            message = f"not run: a batch of {other.batch:.0f} ran out of memory"
            return replace(entry, settings=candidate.settings, message=message, inferred=True)
    return None


def run(
    workload: Workload, fixed: dict[str, Any], candidate: Candidate, runs: Path, more: list[str], flags: list[str]
) -> tuple[float, int]:
    """Make one run as a person would; how long it took in all, and how it ended."""
    words = str(trial_of(workload, fixed, candidate)).split()
    argv = [sys.executable, "-m", "prony", "run", *words, *more, "--out", str(runs), *flags]
    began = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.monotonic() - began, done.returncode


def compiled_apart(fixed: dict[str, Any], candidates: list[Candidate]) -> list[Candidate]:
    """One of all that share their compiled code; those that are not compiled have none to make ready."""
    found: dict[str, Candidate] = {}
    for one in candidates:
        settings = {**fixed, **one.settings}
        if settings.get("compile") != "off":
            found.setdefault(str({name: settings[name] for name in settings if name not in NOT_COMPILED}), one)
    return list(found.values())


def warm(workload: Workload, fixed: dict[str, Any], candidate: Candidate, place: Path) -> bool:
    """Two steps, for what they leave in the compiler's cache; whether they were taken."""
    runs = Path(tempfile.mkdtemp(dir=place))
    return run(workload, fixed, candidate, runs, ["steps=2"], ["--no-energy"])[1] == 0


def record_one(
    workload: Workload, fixed: dict[str, Any], candidate: Candidate, place: Path, seconds: float
) -> tuple[Entry, dict[str, Any]]:
    runs = Path(tempfile.mkdtemp(dir=place))
    took_s, _ = run(workload, fixed, candidate, runs, [], ["--max-time", f"{seconds}s"])
    (folder,) = [path.parent for path in runs.glob("*/record.json")]
    record = json.loads((folder / "record.json").read_text())
    return entry_of(candidate, record, folder, took_s), record


def entry_of(candidate: Candidate, record: dict[str, Any], folder: Path, took_s: float) -> Entry:
    if record["status"] != "ok":
        failure = record["failure"]
        message = failure["message"].splitlines()[0][:200]
        return Entry(candidate.settings, "failed", round(took_s, 2), kind=failure["kind"], message=message)
    metrics, work = record["metrics"], record["work"]
    with (folder / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    usual = statistics.mode(int(row["steps"]) for row in rows)
    blocks = [round(1e6 * float(row["duration_s"])) for row in rows if int(row["steps"]) == usual]
    entry = Entry(
        settings=candidate.settings,
        status="ok",
        around_s=0.0,
        cold_start_s=round(metrics["cold_start"]["value"], 2),
        units_a_step=work["units"] / work["steps"],
        steps_a_block=usual,
        block_us=blocks,
        memory=value(metrics, "peak_memory") or value(metrics, "peak_memory_host"),
        power_w=value(metrics, "power"),
        size_s=round(sum((record["phases"].get(name) or {}).get("seconds", 0.0) for name in SIZE_PHASES), 2),
    )
    return replace(entry, around_s=round(took_s - entry.measured_s, 2))


def value(metrics: dict[str, Any], name: str) -> float | None:
    found = (metrics.get(name) or {}).get("value")
    return None if found is None else float(f"{found:.6g}")


def with_entry(surface: Surface, entry: Entry, record: dict[str, Any], options: argparse.Namespace) -> Surface:
    changed = replace(surface, entries=[*surface.entries, entry])
    if not record:
        return changed
    facts = record["facts"]
    device = (facts.get("devices") or [{}])[0]
    if surface.source:
        if surface.device not in (None, device.get("uuid")):
            raise RequestError(f"{options.out} was begun on another device, {surface.device}: give another file")
        return changed
    software = facts.get("software") or {}
    cache = "warm, trials compiled before" if options.warm else "as Prony leaves it"
    source = (
        f"measured on {device.get('name')}, torch {find_version(software)}, {record['started'][:10]}: "
        f"runs of {options.seconds:g} s by scripts/record_surface.py; compile cache {cache}"
    )
    return replace(changed, source=source, memory_total=device.get("memory_total_bytes"), device=device.get("uuid"))


def find_version(software: dict[str, Any]) -> str:
    torch = software.get("torch")
    return str(torch.get("version") if isinstance(torch, dict) else torch)


def repeat(
    surface: Surface, workload: Workload, fixed: dict[str, Any], place: Path, options: argparse.Namespace, end: float
) -> Surface:
    """How much repeats in fresh processes differ, from a few trials: the best, the median, the slowest."""
    good = sorted((one for one in surface.entries if one.status == "ok"), key=lambda one: one.rate)
    if not good or not options.repeats or surface.between_runs:
        return surface
    chosen = {id(one): one for one in (good[-1], good[len(good) // 2], good[0])}
    entries = surface.entries
    for entry in chosen.values():
        repeats: list[float] = []
        powers: list[float] = []
        for _ in range(options.repeats):
            if time.monotonic() > end:
                break
            again, _ = record_one(workload, fixed, Candidate(tuple(entry.settings.items())), place, options.seconds)
            if again.status == "ok":
                repeats.append(float(f"{again.rate:.6g}"))
                powers += [again.power_w] if again.power_w else []
                print(f"repeat {entry.settings}: {again.rate:.6g} after {entry.rate:.6g}", flush=True)
        entries = [replace(one, repeats=repeats, repeats_w=powers) if one is entry else one for one in entries]
    return with_spread(replace(surface, entries=entries))


def with_spread(surface: Surface) -> Surface:
    """With what all repeats together differ by."""
    repeated = [one for one in surface.entries if one.deviation is not None]
    degrees = sum(len(one.repeats) for one in repeated)
    if not degrees:
        return surface
    squares = math.fsum(len(one.repeats) * (one.deviation or 0.0) ** 2 for one in repeated)
    source = f"{degrees + len(repeated)} runs of {len(repeated)} trials"
    return replace(surface, between_runs=round(math.sqrt(squares / degrees), 5), between_runs_source=source)


if __name__ == "__main__":
    sys.exit(main())
