"""Surfaces for benchmarks/tune.py: every trial of a sweep with its step series, cold start and cost, to be replayed.

A recorded surface is written by scripts/record_surface.py. A synthetic one follows the law below; it says so itself,
and stands for no machine.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import statistics
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError

SCHEMA = "prony.surface/1"
LAW = (
    "synthetic, no measurement: step time = t0 + t1 b, t0 and t1 with a factor for each value, each trial 3 % off "
    "at random, 2 % slower with each doubling beyond a batch; memory = m0 + m1 b; steps with correlated noise of 1 %"
)
GIB = 2**30
# Of the runs in results/h200 beside which the surfaces were recorded, build took 1.6 to 2.6 s and warm-up 0.2 to 0.4 s.
# The build of a process's first size includes imports that later sizes do not pay, so this is rather too much.
BUILD_AND_WARM_UP_S = 3.0


@dataclass(frozen=True)
class Entry:
    """One trial of a surface, as it ran once."""

    settings: dict[str, Any]  # the searched ones
    status: str
    around_s: float  # of the whole run, all but the measuring: launch, build, cold start, end
    cold_start_s: float | None = None
    kind: str | None = None  # of a failure
    message: str | None = None
    units_a_step: float | None = None
    steps_a_block: int = 1
    block_us: list[int] = field(default_factory=list)  # duration of each block of steps, in microseconds
    memory: float | None = None  # bytes at most
    power_w: float | None = None
    size_s: float | None = None  # build and warm-up, which each size of a walk pays; None: not recorded
    inferred: bool = False  # not run: a smaller batch of its series ran out of memory
    repeats: list[float] = field(default_factory=list)  # rates of further runs in fresh processes
    repeats_w: list[float] = field(default_factory=list)  # and their powers, where they were measured

    @property
    def rate(self) -> float:
        """The true rate: that of the whole series."""
        if not self.block_us or not self.units_a_step:
            return 0.0
        return self.units_a_step * self.steps_a_block * len(self.block_us) / (1e-6 * sum(self.block_us))

    @property
    def measured_s(self) -> float:
        return 1e-6 * sum(self.block_us)

    @property
    def cost_s(self) -> float:
        return self.around_s + self.measured_s

    @property
    def own_s(self) -> float:
        """What this trial costs in a process that runs already, beside measuring: build, cold start and warm-up.

        The cold start counts in full. A walk resets the compiler between sizes, so each size compiles as a fresh
        process would, from the same cache on disk.
        """
        if self.cold_start_s is None:
            return self.around_s
        return min(self.around_s, self.cold_start_s + (BUILD_AND_WARM_UP_S if self.size_s is None else self.size_s))

    @property
    def deviation(self) -> float | None:
        """By how much its runs differ, as a share; None where it ran once."""
        return statistics.stdev(math.log(rate) for rate in (self.rate, *self.repeats)) if self.repeats else None


@dataclass(frozen=True)
class Surface:
    """A sweep in full."""

    workload: str
    unit: str
    synthetic: bool
    source: str  # the machine and how it was measured, or the law
    fixed: dict[str, Any]
    lists: dict[str, list[Any]]
    between_runs: float  # relative deviation of repeats in fresh processes, of all that were repeated together
    between_runs_source: str
    memory_total: float | None
    entries: list[Entry]
    device: str | None = None  # the one that all were measured on, by its uuid, where that was kept
    goal: str = "throughput"  # what it was recorded for: with energy, its windows are long enough for a counter

    def best(self, goal: str) -> float:
        return max(self.truth(entry, goal) for entry in self.entries)

    def truth(self, entry: Entry, goal: str) -> float:
        """What the goal wants more of: the rate, or the work per joule."""
        if goal != "energy":
            return entry.rate
        return entry.rate / entry.power_w if entry.power_w else 0.0

    @property
    def sweep_s(self) -> float:
        """Machine time of the full sweep, each trial run once as it was recorded; what was not run cost nothing."""
        return math.fsum(entry.cost_s for entry in self.entries if not entry.inferred)

    def deviation_of(self, entry: Entry) -> float:
        """What runs of a trial differ by: as those that were repeated did, straight between the two nearest in rate.

        A step that waits for its host varies far more than one that keeps its device busy, so one figure for all would
        blur the best by what the slowest differ by. Where repeats were not kept one by one, it is that figure.
        """
        known = sorted((math.log(one.rate), one.deviation) for one in self.entries if one.deviation is not None)
        if not known:
            return self.between_runs
        place = math.log(entry.rate)
        for (low, below), (high, above) in itertools.pairwise(known):
            if low <= place <= high:
                return below + (above - below) * (place - low) / (high - low) if high > low else above
        return known[0][1] if place < known[0][0] else known[-1][1]

    @property
    def power_deviation(self) -> float:
        """What the power of repeats differs by, as a share, of all that were repeated together."""
        groups = [[one.power_w, *one.repeats_w] for one in self.entries if one.power_w and one.repeats_w]
        logs = [[math.log(power_w) for power_w in group if power_w] for group in groups]
        squares = math.fsum((log - math.fsum(one) / len(one)) ** 2 for one in logs for log in one)
        return math.sqrt(squares / sum(len(one) - 1 for one in logs)) if logs else 0.0

    def spread_alike(self, deviation: float) -> Surface:
        """The same, but runs of every trial differ by so much."""
        entries = [replace(entry, repeats=[]) for entry in self.entries]
        return replace(self, entries=entries, between_runs=deviation, between_runs_source="as asked for")

    def told_spread(self) -> str:
        known = [one.deviation for one in self.entries if one.deviation is not None]
        found = f"{min(known):.2%} to {max(known):.2%}, by rate" if known else f"{self.between_runs:.2%}"
        return f"between runs {found} ({self.between_runs_source})"


def write_surface(surface: Surface, path: Path) -> None:
    """Whole or not at all: it is written after each run of a sweep of an hour, and read when that goes on."""
    document = {"schema": SCHEMA, **asdict(surface)}
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))
    temporary.replace(path)


def read_surface(path: Path) -> Surface:
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        entries = [Entry(**entry) for entry in document.pop("entries")]
        return Surface(entries=entries, **document)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except (AttributeError, EOFError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise RequestError(f"{path} is no surface: {error}") from error


@dataclass(frozen=True)
class Law:
    """What a synthetic surface follows: microseconds of a step and of a sample, and what each value changes."""

    workload: str
    unit: str
    units_a_sample: float
    lists: dict[str, list[Any]]
    step_us: float
    sample_us: float
    factors: dict[str, dict[Any, tuple[float, float]]]  # setting, value: factors of t0 and t1
    cold_start_s: dict[Any, float]  # by the value of compile
    sample_gib: float
    memory_factors: dict[str, dict[Any, float]]
    slower_beyond: int


IMAGES = Law(
    workload="wideresnet", unit="images", units_a_sample=1,
    lists={"batch_size": [64, 128, 256, 512, 1024, 2048, 4096], "precision": ["bf16", "fp16"],
           "compile": ["off", "default"], "memory_format": ["contiguous", "channels_last"]},
    step_us=900, sample_us=36,
    factors={"precision": {"bf16": (1, 1), "fp16": (1.3, 1.06)},
             "compile": {"off": (1.6, 1.45), "default": (1, 1)},
             "memory_format": {"contiguous": (1, 1.35), "channels_last": (1, 1)}},
    cold_start_s={"off": 3.0, "default": 14.0}, sample_gib=0.02,
    memory_factors={"compile": {"off": 1.3}}, slower_beyond=1024,
)  # fmt: skip
TOKENS = Law(
    workload="gpt-117m", unit="tokens", units_a_sample=1024,
    lists={"batch_size": [4, 8, 16, 32, 64, 128], "precision": ["bf16", "bf16-pure"],
           "compile": ["off", "default"], "fused": [False, True]},
    step_us=6000, sample_us=2300,
    factors={"precision": {"bf16": (1, 1), "bf16-pure": (0.9, 0.95)}, "compile": {"off": (1.5, 1.4), "default": (1, 1)},
             "fused": {False: (2.2, 1), True: (1, 1)}},
    cold_start_s={"off": 4.0, "default": 20.0}, sample_gib=1.6,
    memory_factors={"compile": {"off": 1.3}, "precision": {"bf16-pure": 0.8}}, slower_beyond=64,
)  # fmt: skip

LAUNCH_BOUND = replace(IMAGES, step_us=9000, lists={**IMAGES.lists, "batch_size": [8, 32, 128, 512, 1024, 2048, 4096]})
LAWS = {"wideresnet": IMAGES, "gpt-117m": TOKENS, "wideresnet, launch-bound": LAUNCH_BOUND}


def synthesise(law: Law, seed: int = 1, seconds: float = 6.0) -> Surface:
    """The surface of a law; the same for the same seed."""
    rng = random.Random(f"{law.workload}-{seed}")
    entries = []
    for values in itertools.product(*law.lists.values()):
        entries.append(_synthetic_entry(law, dict(zip(law.lists, values, strict=True)), rng, seconds))
    return Surface(
        law.workload, law.unit, True, LAW, {}, law.lists, 0.007, "the law", 140.0 * GIB, entries
    )  # fmt: skip


def _synthetic_entry(law: Law, settings: dict[str, Any], rng: random.Random, seconds: float) -> Entry:
    batch = settings["batch_size"]
    step, sample, memory = law.step_us, law.sample_us, law.sample_gib
    for name, value in settings.items():
        first, second = law.factors.get(name, {}).get(value, (1.0, 1.0))
        step, sample = step * first, sample * second
        memory *= law.memory_factors.get(name, {}).get(value, 1.0)
    around_s = 9.0 + law.cold_start_s[settings["compile"]] * rng.uniform(0.9, 1.1)
    used = 2.0 * GIB + memory * GIB * batch
    trial_off = math.exp(rng.gauss(0.0, 0.03))
    if used > 140.0 * GIB:
        return Entry(settings, "failed", around_s, kind="out-of-memory", message="out of memory, by the law")
    slower = 1.02 ** max(0.0, math.log2(batch / law.slower_beyond))
    step_us = (step + sample * batch) * trial_off * slower
    steps = max(1, round(50_000 / step_us))
    blocks, noise = [], 0.0
    while sum(blocks) < seconds * 1e6:
        noise = 0.5 * noise + rng.gauss(0.0, 0.01)
        blocks.append(round(steps * step_us * (1.0 + noise)))
    busy = sample * batch / (step + sample * batch)
    return Entry(
        settings, "ok", around_s, law.cold_start_s[settings["compile"]], None, None, batch * law.units_a_sample, steps,
        blocks, used, 250.0 + 440.0 * busy,
    )  # fmt: skip
