"""Simulated series of step times whose true mean, and the true variance of whose mean, are known.

All times are relative to the undisturbed step. The noise is a Gaussian AR(1) series of single steps; the
sums over blocks are drawn from their exact law, so that no step has to be simulated one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OUTLIER_SHARE, OUTLIER_EXTRA = 0.01, 2.0  # one step in a hundred takes three times as long
STALL_EVERY, STALL_EXTRA = 50, 1.0  # every 50th step waits for the loader as long as a step takes
LEVEL_HALF_GAP = 0.015  # two clocks 3 % apart
LEVEL_STAY_S = {"levels": 0.2, "slow levels": 1.0}  # the stays are exponential, so long on average
DECAY_HEIGHT, DECAY_S = 0.3, 0.5  # first steps 30 % slower, decaying with a time constant of 0.5 s
BOOST_HEIGHT, BOOST_S = -0.05, 1.5  # first 1.5 s 5 % faster, then the power limit is reached
SWITCH_GAP, SWITCH_WINDOW_S = 0.03, 20.0  # one change of clock by 3 % in the middle of a 20 s window

# Rare and slow events. Here the question is whether a window that contains one covers the long-run mean or is doubted.
LONG_STALL_S = 1.0
LONG_STALL_EVERY_S = {"stall 12 s": 12.0, "stall 30 s": 30.0}
MODE_SHORTEST_S, MODE_LONGEST_S = 5.0, 60.0  # dwell times of two modes, LEVEL_HALF_GAP from their mean
PARETO = 1.5  # tail index of single step times: a finite mean, no finite variance
JUMP, JUMP_LATEST_S = 0.03, 20.0  # one jump by 3 % up or down, to stay, uniform over the first 20 s
TAIL_SHARE, TAIL_EXTRA = 0.02, 2.0  # two steps in a hundred take three times as long
EDGE_SHARE = 0.02  # a window contains a change of level that has this share of it on either side
EVENTS = (*LONG_STALL_EVERY_S, "modes", "pareto", "jump", "tail")

KINDS = ("steady", "decay", "boost", "outliers", "stalls", "levels", "slow levels", "switch")
# Loops as the measured loop delivers them: quick steps in blocks of 20 ms, slow ones one by one.
LOOPS = {"fast": (0.002, 10), "slow": (0.050, 1), "0.7 s": (0.7, 1)}


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    kind: str
    loop: str
    variation: float
    ar: float
    remedy: str = ""  # what was asked of the stop rule beside its defaults, for cells beyond them

    @property
    def name(self) -> str:
        parts = [self.kind, self.loop, f"cv{100 * self.variation:g}", f"ar{self.ar:g}", self.remedy]
        return "-".join(part for part in parts if part)

    @property
    def beyond_the_gate(self) -> str:
        """Why no rule that stops after the minimum time can cover here; empty where the gate holds."""
        if (self.kind, self.loop, self.ar, self.remedy) == ("outliers", "slow", 0.0, "") and self.variation < 0.2:
            return "a 1 % event does not occur in 13 % of the windows of 200 steps; see min_steps"
        return ""

    def reaches(self, tolerance: float, max_time_s: float) -> bool:
        """Whether the ideal interval is half the tolerance by the maximum time: else a wide one is no surprise."""
        return 1.96 * math.sqrt(self.mean_variance(int(max_time_s / self.step_s))) <= 0.5 * tolerance

    @property
    def step_s(self) -> float:
        return LOOPS[self.loop][0]

    @property
    def block_steps(self) -> int:
        return LOOPS[self.loop][1]

    @property
    def true_mean(self) -> float:
        if self.kind in LONG_STALL_EVERY_S:
            return LONG_STALL_EVERY_S[self.kind] / (LONG_STALL_EVERY_S[self.kind] - LONG_STALL_S)
        extra = {
            "outliers": OUTLIER_SHARE * OUTLIER_EXTRA,
            "stalls": STALL_EXTRA / STALL_EVERY,
            "tail": TAIL_SHARE * TAIL_EXTRA,
        }
        return 1.0 + extra.get(self.kind, 0.0)

    def mean_variance(self, steps: int) -> float:
        """Variance of the mean over so many steps, from the true long-run variance."""
        variance = self.variation**2 * (1.0 + self.ar) / (1.0 - self.ar) / steps
        if self.kind == "outliers":
            variance += OUTLIER_SHARE * (1.0 - OUTLIER_SHARE) * OUTLIER_EXTRA**2 / steps
        if self.kind in LEVEL_STAY_S:
            variance += LEVEL_HALF_GAP**2 * LEVEL_STAY_S[self.kind] / (steps * self.step_s)
        if self.kind == "stalls":
            # The phase is random: a window holds one stall more or less, unless it is whole periods.
            part = (steps % STALL_EVERY) / STALL_EVERY
            variance += part * (1.0 - part) * STALL_EXTRA**2 / steps**2
        return variance


class Series:
    """The blocks of one run, made as they are asked for."""

    def __init__(self, cell: Cell, rng: np.random.Generator) -> None:
        self.cell = cell
        self._rng = rng
        self._steps = 0
        self._phase = int(rng.integers(STALL_EVERY))
        self._state = float(rng.normal()) * cell.variation
        k, ar = cell.block_steps, cell.ar
        powers = ar ** np.arange(k - 1, -1, -1.0)  # weight of each innovation in the block's last step
        weights = np.cumsum(powers[::-1])[::-1]  # and in the sum over the block
        self._carry = ar**k
        self._lead = float(np.sum(ar ** np.arange(1.0, k + 1)))
        innovation = cell.variation * math.sqrt(1.0 - ar * ar)
        self._last_sd = innovation * float(np.sqrt(powers @ powers))
        self._shared = innovation * float(weights @ powers) / float(np.sqrt(powers @ powers))
        rest = innovation**2 * float(weights @ weights) - self._shared**2
        self._own = math.sqrt(max(rest, 0.0))
        self._switches = np.zeros(1)
        self._first_level = 1.0 if rng.random() < 0.5 else -1.0
        self._uniform = float(rng.random())
        self._tail_steps: list[int] = []
        if cell.kind == "modes":  # the dwell that the series begins in, and where in it
            longest, shortest = MODE_LONGEST_S**2, MODE_SHORTEST_S**2
            dwell_s = math.sqrt(shortest + (longest - shortest) * float(rng.random()))
            self._switches = np.array([0.0, dwell_s * self._uniform])

    def has_event(self, first: int, last: int) -> bool:
        """Whether the window between these steps, counted from the first one, contains an event."""
        kind, start_s, end_s = self.cell.kind, first * self.cell.step_s, last * self.cell.step_s
        if kind in LONG_STALL_EVERY_S:
            return bool(np.diff(self._long_stalls(np.array([start_s, end_s])))[0] > 0)
        edge_s = EDGE_SHARE * (end_s - start_s)
        start_s, end_s = start_s + edge_s, end_s - edge_s
        if kind == "modes":
            return bool(np.any((self._switches[1:] > start_s) & (self._switches[1:] < end_s)))
        if kind == "jump":
            return self._uniform * JUMP_LATEST_S < end_s  # a head that was cut was seen as well
        if kind == "tail":
            return any(first <= step < last for step in self._tail_steps)
        return True

    def _long_stalls(self, times_s: Array) -> Array:
        """Stalls up to each time, in seconds of undisturbed steps."""
        every_s = LONG_STALL_EVERY_S[self.cell.kind] - LONG_STALL_S
        return np.floor(times_s / every_s + self._uniform)

    def more(self, blocks: int) -> Array:
        """Durations in seconds of the next blocks."""
        cell, k = self.cell, self.cell.block_steps
        edges = self._steps + k * np.arange(blocks + 1)
        self._steps += k * blocks
        relative = k + self._noise(blocks) + np.diff(self._extra(edges))
        if cell.kind == "pareto":
            draws = self._rng.random((blocks, k)) ** (-1.0 / PARETO)
            relative = draws.sum(axis=1) * (PARETO - 1.0) / PARETO
        if cell.kind == "tail":
            slow = np.flatnonzero(self._rng.random(blocks) < TAIL_SHARE)
            relative[slow] += TAIL_EXTRA
            self._tail_steps += (edges[0] + slow).tolist()
        if cell.kind == "outliers":
            relative += OUTLIER_EXTRA * self._rng.binomial(k, OUTLIER_SHARE, blocks)
        # At 20 % one step in four million would be negative; stopping it moves the mean by nothing.
        return cell.step_s * np.maximum(relative, 0.01 * k)

    def _noise(self, blocks: int) -> Array:
        first, second = self._rng.normal(size=(2, blocks))
        carry = self._carry
        pushes = (first * self._last_sd).tolist()
        states = np.array(list(accumulate(pushes, lambda x, e: carry * x + e, initial=self._state)))
        self._state = float(states[-1])
        return self._lead * states[:-1] + self._shared * first + self._own * second

    def _extra(self, edges: NDArray[np.int64]) -> Array:
        """What the disturbance has added up to each edge, in steps."""
        cell = self.cell
        times_s = edges * cell.step_s
        if cell.kind == "stalls":
            return STALL_EXTRA * ((edges + self._phase) // STALL_EVERY).astype(float)
        if cell.kind == "decay":
            return -DECAY_HEIGHT * DECAY_S / cell.step_s * np.exp(-times_s / DECAY_S)
        if cell.kind == "boost":
            return BOOST_HEIGHT * np.minimum(times_s, BOOST_S) / cell.step_s
        if cell.kind == "switch":
            return SWITCH_GAP * np.maximum(times_s - SWITCH_WINDOW_S / 2, 0.0) / cell.step_s
        if cell.kind in LEVEL_STAY_S or cell.kind == "modes":
            return LEVEL_HALF_GAP * self._telegraph(times_s) / cell.step_s
        if cell.kind in LONG_STALL_EVERY_S:
            return LONG_STALL_S * self._long_stalls(times_s) / cell.step_s
        if cell.kind == "jump":  # relative to the level after it
            before_s = np.minimum(times_s, self._uniform * JUMP_LATEST_S)
            return self._first_level * JUMP * before_s / cell.step_s
        return np.zeros(len(edges))

    def _telegraph(self, times_s: Array) -> Array:
        """Time spent on the upper level less that on the lower, up to each time."""
        while self._switches[-1] < times_s[-1]:
            if self.cell.kind == "modes":
                stays_s = self._rng.uniform(MODE_SHORTEST_S, MODE_LONGEST_S, 64)
            else:
                stays_s = self._rng.exponential(LEVEL_STAY_S[self.cell.kind], 64)
            self._switches = np.append(self._switches, self._switches[-1] + np.cumsum(stays_s))
        signs = self._first_level * (-1.0) ** np.arange(len(self._switches) - 1)
        spent_s = np.append(0.0, np.cumsum(signs * np.diff(self._switches)))
        return np.asarray(np.interp(times_s, self._switches, spent_s))


def all_cells() -> list[Cell]:
    """Every row of the table: the whole grid for quick steps, its corners for slow ones and the switch."""
    grid = [
        Cell(kind, loop, variation, ar)
        for loop in ("fast", "slow")
        for kind in KINDS
        for variation in (0.005, 0.05, 0.20)
        for ar in (0.0, 0.3, 0.6, 0.9)
        if ar in (0.0, 0.9) or (loop == "fast" and kind != "switch")
    ]
    rare = [Cell("outliers", "slow", v, ar, "min_steps=2000") for v in (0.005, 0.05) for ar in (0.0, 0.9)]
    events = [
        Cell(kind, loop, variation, 0.0)
        for kind in EVENTS
        for loop in (("0.7 s",) if kind == "tail" else ("fast", "slow"))
        for variation in ((0.0,) if kind == "pareto" else (0.005, 0.05))
    ]
    return [*grid, *rare, *events, *(Cell("steady", "0.7 s", variation, 0.0) for variation in (0.005, 0.05))]
