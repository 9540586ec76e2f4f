"""The law that a scaling series follows: fitted to its speedups, with what it says of counts that were not run.

The time of a step on N devices, over that on one, is

    strong:  1/N + sigma (N - 1)/N + kappa (N - 1)      (the work is shared out)
    weak:    1   + sigma (N - 1)/N + kappa (N - 1)      (the work grows with the devices)

sigma is what does not shrink with more devices: serial work, and also an all-reduce round a ring, whose bytes go with
(N - 1)/N. kappa is what every further device adds for all the others: congestion, stragglers. For strong scaling this
is Gunther's Universal Scalability Law, and with kappa = 0 Amdahl's; for weak scaling it is the same cost beside work
that stays the same on each device. One law for both was chosen because its parts have a meaning, are linear in the
step time, and hold Amdahl's law as a special case.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prony_node.stats import percentile

WEAK, STRONG = "weak", "strong"
DRAWS = 500
SEED = 20260101  # the same records give the same interval
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Figure:
    """A value with its 95 % interval; the ends are None where nothing gives them."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Law:
    """Speedup over one device as a function of how many there are."""

    kind: str
    sigma: float
    kappa: float

    def speedup(self, devices: float) -> float:
        fixed, growing = _terms(self.kind, devices)
        return devices / (1.0 + self.sigma * fixed + self.kappa * growing)


@dataclass(frozen=True)
class Prediction:
    """What the law says of a count."""

    devices: int
    speedup: Figure
    efficiency: Figure


@dataclass(frozen=True)
class HeldOut:
    """The largest count, left out of the fit and predicted by it."""

    devices: int
    fitted_to: list[int]
    predicted: Figure
    measured: float
    error: float  # predicted over measured, less 1
    covered: bool | None  # whether the interval of the prediction and that of the measurement meet


@dataclass(frozen=True)
class Fit:
    """The law of a series."""

    name: str
    sigma: Figure
    kappa: Figure | None  # None: too few counts to tell it
    counts: list[int]
    spare: int  # counts more than parameters: 0 says that the law goes through every point whatever they are
    misfit: float  # root mean square of predicted over measured, less 1
    peak: float | None  # devices beyond which the law has the rate fall
    predictions: list[Prediction]
    held_out: HeldOut | None


def fit(kind: str, speedups: Mapping[int, Figure], base: Figure, predict: Sequence[int] = ()) -> Fit | None:
    """The law of these speedups over one device; None without any count above one.

    `base` is the one device's own rate with its interval: what is wrong with it is wrong with every speedup.
    """
    measured = {count: speedups[count] for count in sorted(speedups) if count > 1}
    if not measured:
        return None
    law, parameters = _fit({count: figure.value for count, figure in measured.items()}, kind)
    drawn = _draw(measured, base, kind, law)
    ahead = [count for count in sorted(set(predict)) if count not in measured and count > 1]
    misses = [law.speedup(count) / figure.value - 1.0 for count, figure in measured.items()]
    return Fit(
        name=_name(kind, parameters),
        sigma=_figure(law, drawn, lambda one: one.sigma),
        kappa=_figure(law, drawn, lambda one: one.kappa) if parameters == 2 else None,
        counts=list(measured),
        spare=len(measured) - parameters,
        misfit=math.sqrt(math.fsum(miss * miss for miss in misses) / len(misses)),
        peak=_peak(law),
        predictions=[_predict(law, drawn, count) for count in ahead],
        held_out=_hold_out(kind, measured, base),
    )


def _peak(law: Law) -> float | None:
    """Where the rate of strong scaling is highest; weak scaling has no such count within reach of the law."""
    if law.kind != STRONG or law.kappa <= 0.0 or law.sigma >= 1.0:
        return None
    return math.sqrt((1.0 - law.sigma) / law.kappa)


def _terms(kind: str, devices: float) -> tuple[float, float]:
    """What sigma and kappa stand before, over the time that the work itself takes on so many devices."""
    more = devices - 1.0
    return (more, devices * more) if kind == STRONG else (more / devices, more)


def _name(kind: str, parameters: int) -> str:
    name = "Amdahl's law" if parameters == 1 else "the Universal Scalability Law"
    return name if kind == STRONG else f"{name}, for work that grows with the devices"


def _fit(speedups: Mapping[int, float], kind: str) -> tuple[Law, int]:
    """Least squares of the relative error of the step time, neither part below nothing.

    kappa is fitted from three counts above one on, so that a point is left that could contradict the law.
    """
    rows = []
    for count, speedup in speedups.items():
        fixed, growing = _terms(kind, count)
        weight = speedup / count  # a time is known to a share of itself
        rows.append((fixed * weight, growing * weight, (count / speedup - 1.0) * weight))
    parameters = 1 if len(rows) < 3 else 2
    candidates = [(0.0, 0.0), (_alone(rows, 0), 0.0)]
    if parameters == 2:
        candidates += [(0.0, _alone(rows, 1)), _together(rows)]
    possible = [pair for pair in candidates if min(pair) >= 0.0]
    sigma, kappa = min(possible, key=lambda pair: _squares(rows, *pair))
    return Law(kind, sigma, kappa), parameters


Rows = Sequence[tuple[float, float, float]]


def _alone(rows: Rows, which: int) -> float:
    top = math.fsum(row[which] * row[2] for row in rows)
    return max(0.0, top / math.fsum(row[which] ** 2 for row in rows))


def _together(rows: Rows) -> tuple[float, float]:
    """Both parts by the normal equations; (-1, -1), which is never taken, where the counts cannot tell them apart."""
    ff, fg, gg = (math.fsum(row[a] * row[b] for row in rows) for a, b in ((0, 0), (0, 1), (1, 1)))
    fy, gy = (math.fsum(row[a] * row[2] for row in rows) for a in (0, 1))
    determinant = ff * gg - fg * fg
    if determinant <= 1e-12 * ff * gg:
        return -1.0, -1.0
    return (gg * fy - fg * gy) / determinant, (ff * gy - fg * fy) / determinant


def _squares(rows: Rows, sigma: float, kappa: float) -> float:
    return math.fsum((sigma * row[0] + kappa * row[1] - row[2]) ** 2 for row in rows)


def _spread(figure: Figure) -> float | None:
    """The standard deviation, on the log scale, whose 95 % interval is this figure's."""
    if figure.low is None or figure.high is None or figure.low <= 0.0:
        return None
    return math.log(figure.high / figure.low) / (2.0 * NORMAL_95)


def _draw(measured: Mapping[int, Figure], base: Figure, kind: str, law: Law) -> list[Law]:
    """Laws of series that could as well have been measured (parametric bootstrap); none without intervals.

    Where the points lie farther from the law than their intervals allow, they are drawn as wide as that: what the law
    does not know must not make its predictions look sure.
    """
    base_spread = _spread(base)
    spreads = {count: _spread(figure) for count, figure in measured.items()}
    if base_spread is None or any(spread is None for spread in spreads.values()):
        return []
    # A speedup's interval holds that of the base; it is drawn once for all of them, and only the rest for each.
    own = {count: math.sqrt(max(0.0, (spread or 0.0) ** 2 - base_spread**2)) for count, spread in spreads.items()}
    spare = len(measured) - (1 if len(measured) < 3 else 2)
    misses = [math.log(law.speedup(count) / figure.value) for count, figure in measured.items()]
    beyond = math.sqrt(math.fsum(miss * miss for miss in misses) / spare) if spare > 0 else 0.0
    source = random.Random(SEED)
    found = []
    for _ in range(DRAWS):
        shared = source.gauss(0.0, base_spread)
        moved = {
            count: figure.value * math.exp(source.gauss(0.0, max(own[count], beyond)) - shared)
            for count, figure in measured.items()
        }
        found.append(_fit(moved, kind)[0])
    return found


def _figure(law: Law, drawn: Sequence[Law], of: Callable[[Law], float]) -> Figure:
    if not drawn:
        return Figure(of(law))
    values = [of(one) for one in drawn]
    low, high = percentile(values, 2.5), percentile(values, 97.5)
    return Figure(of(law), min(low, of(law)), max(high, of(law)))


def _predict(law: Law, drawn: Sequence[Law], count: int) -> Prediction:
    speedup = _figure(law, drawn, lambda one: one.speedup(count))
    return Prediction(count, speedup, over(speedup, count))


def over(figure: Figure, divisor: float) -> Figure:
    """A figure divided by an exact number."""
    ends = (None if end is None else end / divisor for end in (figure.low, figure.high))
    return Figure(figure.value / divisor, *ends)


def _hold_out(kind: str, measured: Mapping[int, Figure], base: Figure) -> HeldOut | None:
    """The largest count predicted from the others; None where only one count is above one."""
    *others, largest = measured
    if not others:
        return None
    known = {count: measured[count] for count in others}
    law, _ = _fit({count: figure.value for count, figure in known.items()}, kind)
    predicted = _predict(law, _draw(known, base, kind, law), largest).speedup
    target = measured[largest]
    ends = (predicted.low, predicted.high, target.low, target.high)
    covered = None
    if not any(end is None for end in ends):
        low, high, target_low, target_high = (float(end) for end in ends if end is not None)
        covered = low <= target_high and target_low <= high
    return HeldOut(largest, others, predicted, target.value, predicted.value / target.value - 1.0, covered)
