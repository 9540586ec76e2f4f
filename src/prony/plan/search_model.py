"""A model of a rate over settings: rising with the batch size until it saturates, a factor for each other value.

    log rate = level + log(b / (b + h)) (1 + slope) + a factor for each value + a small remainder

A Gaussian process with that mean and covariance: b is the batch size, h the batch at which half of the highest rate
is reached. What a few runs cannot tell (h, how strong factors are, how large the remainder) is averaged over a small
grid by how well it explains what was seen, so that one run is already a model, and a modest one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL_SPREAD = 1.0  # of the logarithm of the whole level, around what was seen
SLOPE_SPREAD = 0.3  # of how strongly the batch matters, for all and for each value of a setting
REMAINDER_KEPT = 0.5  # of the remainder, between trials that differ in one value
REMAINDER_REACH = 1.5  # over so many doublings of the batch
FACTORS = (0.1, 0.3, 0.7)  # typical logarithm of a factor
REMAINDERS = (0.02, 0.06, 0.15)
HALVES = (0.25, 1.0, 4.0, 16.0, 64.0)  # of the smallest batch: where half of the highest rate is reached
LEAST_WEIGHT = 0.05  # what explains the runs this much worse than the best is left out
GROWTH = 0.8  # of memory with the batch, as a power: weights do not grow with it
NEIGHBOUR = 0.5  # of a factor, between neighbouring values of a setting that is a number

Row = list[float]
Likeness = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """Where a trial lies: a rank for the value of each setting, and its batch size where that is searched."""

    ranks: tuple[int, ...]
    batch: float | None = None


@dataclass(frozen=True)
class Seen:
    """The logarithm of what was measured at a place, and the variance of its error."""

    place: Place
    log_value: float
    variance: float


@dataclass(frozen=True)
class Guess:
    """What the model expects at a place, as logarithms."""

    mean: float
    deviation: float
    weight: float = 1.0


@dataclass(frozen=True)
class Shape:
    """One setting of what a few runs cannot tell."""

    factor: float
    remainder: float
    half: float | None  # None: grows with the batch without an end, as memory does


def rate_shapes(smallest: float | None) -> list[Shape]:
    """The grid for a rate; without a batch size there is no half to be found."""
    halves = (1.0,) if smallest is None else tuple(smallest * ratio for ratio in HALVES)
    return [Shape(*one) for one in itertools.product(FACTORS, REMAINDERS, halves)]


def growing_shapes() -> list[Shape]:
    """The grid for what grows with the batch: memory, the time of a step."""
    return [Shape(factor, remainder, None) for factor in FACTORS for remainder in REMAINDERS]


class Model:
    """What was seen, and what to expect elsewhere."""

    def __init__(self, seen: Sequence[Seen], shapes: Sequence[Shape], counted: Sequence[bool]) -> None:
        """`counted` says for each rank whether it is that of a number, whose neighbours are alike."""
        self.counted = tuple(counted)
        self.places = [one.place for one in seen]
        likeness = [self._likeness(one.place, self.places[: number + 1]) for number, one in enumerate(seen)]
        fits = [_Fit(seen, shape, likeness) for shape in shapes]
        best = max(fit.evidence for fit in fits)
        kept = [(fit, math.exp(fit.evidence - best)) for fit in fits]
        kept = [(fit, weight) for fit, weight in kept if weight >= LEAST_WEIGHT]
        total = math.fsum(weight for _, weight in kept)
        self._fits = [(fit, weight / total) for fit, weight in kept]

    def guesses(self, place: Place) -> list[Guess]:
        """A guess for each shape that explains the runs, with its weight."""
        likeness = self._likeness(place, [*self.places, place])
        return [Guess(*fit.predict(place, likeness), weight) for fit, weight in self._fits]

    def expected_gain(self, place: Place, best: float) -> float:
        """By how much the logarithm is expected to exceed `best`; where it does not, that is no loss."""
        return math.fsum(guess.weight * _gain(guess, best) for guess in self.guesses(place))

    def probability_below(self, place: Place, limit: float) -> float:
        """How likely the logarithm is below `limit`."""
        return math.fsum(
            guess.weight * _normal_below((limit - guess.mean) / guess.deviation) for guess in self.guesses(place)
        )

    def _likeness(self, a: Place, others: Sequence[Place]) -> list[Likeness]:
        return [_likeness(a, other, self.counted) for other in others]


def _likeness(a: Place, b: Place, counted: Sequence[bool]) -> Likeness:
    """How many values two places share, and what of the remainder: the same for every shape."""
    kept, alike = 1.0, 0.0
    for one, other, is_number in zip(a.ranks, b.ranks, counted, strict=True):
        if one == other:
            alike += 1.0
        else:
            kept *= REMAINDER_KEPT
            alike += NEIGHBOUR ** abs(one - other) if is_number else 0.0
    if a.batch is not None and b.batch is not None and a.batch != b.batch:
        kept *= math.exp(-((math.log2(a.batch / b.batch) / REMAINDER_REACH) ** 2) / 2.0)
    return alike, kept


class _Fit:
    """The Gaussian process of one shape."""

    def __init__(self, seen: Sequence[Seen], shape: Shape, likeness: Sequence[Sequence[Likeness]]) -> None:
        self.shape = shape
        self.warped = [self._warp(one.place) for one in seen]
        self.centre = 0.0 if shape.half is not None else math.fsum(self.warped) / len(seen)
        self.level = math.fsum(one.log_value - w for one, w in zip(seen, self.warped, strict=True)) / len(seen)
        rest = [one.log_value - self.level - w for one, w in zip(seen, self.warped, strict=True)]
        matrix = [self._covariances(self.warped[i], row, self.warped[: i + 1]) for i, row in enumerate(likeness)]
        for i, one in enumerate(seen):
            matrix[i][i] += one.variance + 1e-9
        self.root = _cholesky(matrix)
        half = _solve_lower(self.root, rest)
        self.weights = _solve_upper(self.root, half)
        log_determinant = math.fsum(math.log(row[-1]) for row in self.root)
        self.evidence = -0.5 * math.fsum(value * value for value in half) - log_determinant

    def predict(self, place: Place, likeness: Sequence[Likeness]) -> tuple[float, float]:
        """Mean and deviation at a place; `likeness` is to every place that was seen, and at last to itself."""
        warped = self._warp(place)
        *cross, own = self._covariances(warped, likeness, [*self.warped, warped])
        mean = self.level + warped + math.fsum(c * w for c, w in zip(cross, self.weights, strict=True))
        explained = _solve_lower(self.root, cross)
        variance = own - math.fsum(value * value for value in explained)
        return mean, math.sqrt(max(variance, 1e-12))

    def _warp(self, place: Place) -> float:
        """The batch on the scale on which the logarithm is straight."""
        if place.batch is None:
            return 0.0
        if self.shape.half is None:
            return GROWTH * math.log(place.batch)
        return -math.log1p(self.shape.half / place.batch)

    def _covariances(self, warped: float, likeness: Sequence[Likeness], others: Sequence[float]) -> Row:
        factor, remainder = self.shape.factor**2, self.shape.remainder**2
        bend = SLOPE_SPREAD**2 * (warped - self.centre)
        row = []
        for (alike, kept), other in zip(likeness, others, strict=True):
            slope = bend * (other - self.centre)
            row.append(LEVEL_SPREAD**2 + slope + alike * (factor + slope) + remainder * kept)
        return row


def _gain(guess: Guess, best: float) -> float:
    above = guess.mean - best
    score = above / guess.deviation
    density = math.exp(-0.5 * score * score) / math.sqrt(2.0 * math.pi)
    return above * _normal_below(score) + guess.deviation * density


def _normal_below(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))


def _cholesky(matrix: list[Row]) -> list[Row]:
    """The lower root of a symmetric positive matrix, given as its lower triangle."""
    root: list[Row] = []
    for i, row in enumerate(matrix):
        made: Row = []
        for j in range(i):
            above = root[j]
            made.append((row[j] - sum(map(float.__mul__, made, above))) / above[j])
        made.append(math.sqrt(max(row[i] - sum(value * value for value in made), 1e-12)))
        root.append(made)
    return root


def _solve_lower(root: list[Row], right: Sequence[float]) -> Row:
    found: Row = []
    for row, value in zip(root, right, strict=True):
        found.append((value - sum(map(float.__mul__, found, row))) / row[-1])
    return found


def _solve_upper(root: list[Row], right: Sequence[float]) -> Row:
    found = list(right)
    for i in range(len(root) - 1, -1, -1):
        found[i] /= root[i][i]
        for j in range(i):
            found[j] -= root[i][j] * found[i]
    return found
