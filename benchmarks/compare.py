"""Does `prony compare` say "different" when nothing is, and does it see what is?

Made-up records with a known between-run deviation go through the real `prony.analysis.compare`. Each row of the table
is one design: how many runs per side, how much runs vary, where the variation of a single run is taken from. The gates
stand in the table; a missed one exits with 1. Standard library and Prony only:

    python benchmarks/compare.py --count 4000
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony.analysis.compare import FASTER, SLOWER, compare
from prony.analysis.variation import Repeat, repeats_of
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.record import (
    RECORD_SCHEMA,
    Facts,
    Metric,
    Provenance,
    Record,
    RecordedTrial,
    WorkDone,
)

Settings = dict[str, Any]
DEVIATIONS = (0.002, 0.01, 0.016)
WITHIN = 0.0005  # relative half width of a run's own interval
MOST_FALSE = 0.06
# Where a single run takes the variation from. `other side` needs several runs there.
PRIOR, SAME_TRIAL, NEAREST, OTHER_SIDE = "prior", "4 repeats in store", "4 of nearest settings", "other side"
A_SETTINGS = {"mode": "train", "batch_size": 64, "fused": True, "seed": 0}
B_SETTINGS = A_SETTINGS | {"fused": False}
OTHER_MODE = A_SETTINGS | {"mode": "infer"}
NEIGHBOUR = A_SETTINGS | {"batch_size": 128}


@dataclass(frozen=True)
class Row:
    """One design and its gate: at most, or at least, this share of comparisons may or must say "different"."""

    name: str
    source: str
    deviation: float
    change: float  # true change of the rate
    try_once: Callable[[random.Random], bool]
    most: float | None = None
    least: float | None = None

    def passes(self, share: float) -> bool:
        return (self.most is None or share <= self.most) and (self.least is None or share >= self.least)

    @property
    def gate(self) -> str:
        return f"at most {100 * self.most:g} %" if self.most is not None else f"at least {100 * (self.least or 0):g} %"


def made_up(settings: Settings, rate: float, number: int) -> Record:
    """A good record, as far as a comparison looks at it; `number` tells runs apart and orders them in time."""
    low, high = rate / (1.0 + WITHIN), rate * (1.0 + WITHIN)
    return Record(
        schema=RECORD_SCHEMA,
        id=f"made-up-{number:06d}",
        status="ok",
        started=f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}+00:00",
        trial=RecordedTrial("made-up", {}, effective=dict(settings)),
        metrics={"throughput": Metric(rate, low, high, unit="images/s", scope="all devices", source="made up")},
        phases={},
        checks=(),
        work=WorkDone(),
        facts=Facts(devices=(DeviceFacts(name="made-up device"),)),
        fingerprint=Provenance(machine="one", software="one"),
    )


def is_different(a: Sequence[Record], b: Sequence[Record], pool: Sequence[Repeat], paired: bool | None = None) -> bool:
    return compare(a, b, pool, paired).verdict in (FASTER, SLOWER)


def independent(a_runs: int, b_runs: int, source: str, deviation: float, change: float) -> Callable[..., bool]:
    """Runs that were not interleaved: all of A before all of B."""

    def try_once(rng: random.Random) -> bool:
        number = iter(range(1, 1000))

        def runs(settings: Settings, count: int, rate: float = 1000.0) -> list[Record]:
            return [made_up(settings, rate * math.exp(rng.gauss(0.0, deviation)), next(number)) for _ in range(count)]

        theirs = OTHER_MODE if source == PRIOR else B_SETTINGS
        a, b = runs(A_SETTINGS, a_runs), runs(theirs, b_runs, 1000.0 * (1.0 + change))
        stored = []
        if source == SAME_TRIAL:
            stored = runs(A_SETTINGS, 4) + runs(B_SETTINGS, 4, 1000.0 * (1.0 + change))
        elif source == NEAREST:
            stored = runs(NEIGHBOUR, 4)
        return is_different(a, b, repeats_of([*a, *b, *stored]))

    return try_once


def interleaved(pairs: int, deviation: float, change: float, drift: float, paired: bool | None) -> Callable[..., bool]:
    """An A/B in the order ABBA, with a linear drift from its first run to its last."""

    def try_once(rng: random.Random) -> bool:
        order = ("ABBA" * pairs)[: 2 * pairs]
        sides: dict[str, list[Record]] = {"A": [], "B": []}
        for place, name in enumerate(order):
            settings, gain = (A_SETTINGS, 1.0) if name == "A" else (B_SETTINGS, 1.0 + change)
            rate = 1000.0 * gain * (1.0 - drift * place / (len(order) - 1)) * math.exp(rng.gauss(0.0, deviation))
            sides[name].append(made_up(settings, rate, place))
        return is_different(sides["A"], sides["B"], (), paired)

    return try_once


def rows() -> list[Row]:
    found = []
    designs = [
        ((1, 1), (PRIOR, SAME_TRIAL, NEAREST)),
        ((1, 3), (PRIOR, SAME_TRIAL, NEAREST, OTHER_SIDE)),
        ((2, 2), ("own runs",)),
        ((3, 3), ("own runs",)),
        ((5, 5), ("own runs",)),
    ]
    for (a, b), sources in designs:
        for source in sources:
            for deviation in DEVIATIONS:
                try_once = independent(a, b, source, deviation, 0.0)
                found.append(Row(f"{a}v{b}", source, deviation, 0.0, try_once, most=MOST_FALSE))
    for a, b, least in ((3, 3, 0.65), (5, 5, 0.95)):
        try_once = independent(a, b, "own runs", 0.01, 0.03)
        found.append(Row(f"{a}v{b}", "own runs", 0.01, 0.03, try_once, least=least))
    known = independent(1, 1, SAME_TRIAL, 0.01, 0.10)
    found.append(Row("1v1", SAME_TRIAL, 0.01, 0.10, known, least=0.95))
    drifting = "drift 3 %"
    for change, gate in ((0.0, {"most": MOST_FALSE}), (0.02, {"least": 0.95})):
        four = interleaved(4, 0.002, change, 0.03, None)
        found.append(Row("4 pairs, ABBA", drifting, 0.002, change, four, **gate))
    two = interleaved(2, 0.002, 0.5, 0.03, True)
    found.append(Row("2 pairs, ABBA", drifting, 0.002, 0.5, two, most=0.0))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=4000, help="comparisons per row")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print(f"{options.count} comparisons per row, seed {options.seed}\n")
    print('| design | variation from | SD % | true change % | said "different" % | gate | |')
    print("| --- | --- | --- | --- | --- | --- | --- |")
    missed = 0
    for row in rows():
        rng = random.Random(f"{options.seed} {row.name} {row.source} {row.deviation} {row.change}")
        share = sum(row.try_once(rng) for _ in range(options.count)) / options.count
        missed += not row.passes(share)
        cells = [row.name, row.source, f"{100 * row.deviation:g}", f"{100 * row.change:+g}", f"{100 * share:.1f}"]
        print(f"| {' | '.join(cells)} | {row.gate} | {'pass' if row.passes(share) else 'miss'} |", flush=True)
    print(f"\n{missed} gates missed" if missed else "\nall gates passed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
