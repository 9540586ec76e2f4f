"""When to stop measuring, decided while the measured loop runs."""

from __future__ import annotations

from dataclasses import dataclass

from prony_node.stats.estimate import (
    BlockStore,
    Estimate,
    SteadyWindow,
    full_estimate,
    half_width_floor,
    interim_estimate,
    steady_window,
)
from prony_node.stats.intervals import two_sided_t
from prony_node.stats.steady import MOST_COSINES, jumped_at_end

# Looks grow apart by this factor: each look is a chance to stop on an interval that is small by luck.
LOOK_GROWTH = 1.3
# A long cut may have been a clock that will come back: what is left must outlast it.
WINDOW_TO_CUT = 2.0
# By how much an interval may be too narrow that was taken from a window shorter than the slowest variation.
SLOW_FACTOR = 3.0
# Clocks and loaders vary over seconds. A window shorter than this may not show it, so it is believed only where
# its interval is narrower than requested by SHORT_WINDOW_FACTOR.
LONG_WINDOW_S = 20.0
SHORT_WINDOW_FACTOR = 4.0


@dataclass(frozen=True)
class StopRule:
    """When a measurement is good enough, and when it has taken long enough.

    tolerance: relative half width of the interval of the rate at which to stop.
    confidence: of that interval.
    min_time_s: the steady window, transient excluded, lasts at least so long.
    max_time_s: no measurement lasts longer, transient included, good or not.
    min_independent_blocks: effectively independent blocks in the window before its interval is believed.
    min_steps: steps in the window; an event rarer than one in so many may well not have occurred in it.
    drift_limit: the relative change over the window that must not go unseen.
    """

    tolerance: float = 0.01
    confidence: float = 0.95
    min_time_s: float = 10.0
    max_time_s: float = 120.0
    min_independent_blocks: float = 35.0
    min_steps: int = 1
    drift_limit: float = 0.02

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")
        if not 0.0 < self.confidence < 1.0:
            raise ValueError(f"confidence must lie between 0 and 1, got {self.confidence}")
        if not 0.0 <= self.min_time_s <= self.max_time_s:
            raise ValueError(f"min_time_s {self.min_time_s} must not exceed max_time_s {self.max_time_s}")
        if not self.drift_limit > 0.0:
            raise ValueError(f"drift_limit must be positive, got {self.drift_limit}")


@dataclass(frozen=True)
class Decision:
    """Whether to stop, and why.

    The estimate is full when the measurement stops. While it goes on the interval is there, but drift is
    "unknown" and levels is 0: they are looked for once, at the end. `blocks_seen`: how many blocks it was made
    from, counted from the first one; the reported estimate is of these. None: all that were added.
    """

    stop: bool
    reason: str
    estimate: Estimate | None
    blocks_seen: int | None = None


class Tracker:
    """Takes the timed blocks of one run and says when there are enough of them.

    `period`: steps after which the same batches come again, where these differ; else 0.
    """

    __slots__ = ("_decision", "_next_look_s", "_store", "period", "rule")

    def __init__(self, rule: StopRule, period: int = 0) -> None:
        self.rule = rule
        self.period = period
        self._store = BlockStore()
        self._decision: Decision | None = None  # to stop
        self._next_look_s = rule.min_time_s
        for degrees in range(1, MOST_COSINES + 1):  # cached here, so that the first look is no slower
            two_sided_t(rule.confidence, degrees)

    def add(self, duration_s: float, steps: int = 1) -> None:
        """Add one timed block of `steps` steps."""
        self._store.add(duration_s, steps)

    def due(self) -> bool:
        """Whether a look at the data is worth its cost now."""
        return self._store.elapsed_s >= self._next_look_s

    def decide(self) -> Decision:
        """Look at the data, and say whether to stop. Bounded work, whatever the length of the run."""
        rule, elapsed_s = self.rule, self._store.elapsed_s
        last_look = elapsed_s >= rule.max_time_s
        if not last_look:
            base_s = max(elapsed_s, rule.min_time_s / LOOK_GROWTH)
            self._next_look_s = min(rule.max_time_s, base_s * LOOK_GROWTH)
            if elapsed_s < rule.min_time_s:
                return Decision(False, "the minimum time is not over", None)
        window = steady_window(self._store, rule.confidence, self.period)
        reason = self._missing(window)
        seen = self._store.added
        if reason and not last_look:
            return Decision(False, reason, interim_estimate(window, rule.confidence) if window else None, seen)
        why = f"the maximum time is over, but {reason}" if reason else "the interval is within the tolerance"
        self._decision = Decision(True, why, self._full(window), seen)
        return self._decision

    def estimate(self) -> Estimate | None:
        """The full estimate that decided to stop, or from all blocks so far; None with too few of them.

        Blocks that end after the decision do not change it: it is the decision that the interval's coverage holds for.
        """
        if self._decision is not None:
            return self._decision.estimate
        return self._full(steady_window(self._store, self.rule.confidence, self.period))

    def _full(self, window: SteadyWindow | None) -> Estimate | None:
        return full_estimate(window, self.rule.confidence, self.rule.drift_limit) if window else None

    def _missing(self, found: SteadyWindow | None) -> str:
        """What keeps the estimate from being good enough; empty when nothing does."""
        rule = self.rule
        if found is None:
            return "there are too few blocks for an estimate"
        if found.window_s < rule.min_time_s * (1.0 - 1e-9):  # a look due by one sum must not fail by another
            return f"the steady window of {found.window_s:.3g} s is shorter than {rule.min_time_s:.3g} s"
        cut_s = found.transient_s
        if cut_s and found.window_s < max(WINDOW_TO_CUT * cut_s, rule.min_time_s + cut_s):
            return f"{cut_s:.3g} s were cut as a transient, and the steady window must outlast them"
        if found.steps < rule.min_steps:
            return f"the steady window has {found.steps} steps of the {rule.min_steps} required"
        if found.independent_blocks < rule.min_independent_blocks:
            return f"only {found.independent_blocks:.0f} blocks are effectively independent"
        if found.slow and SLOW_FACTOR * found.sampling_half_width > rule.tolerance:
            return "the slowest variation is as long as the window, so its interval cannot be trusted yet"
        if found.window_s < LONG_WINDOW_S and SHORT_WINDOW_FACTOR * found.sampling_half_width > rule.tolerance:
            return f"a window under {LONG_WINDOW_S:.0f} s must be {SHORT_WINDOW_FACTOR:.0f} times better than requested"
        if half_width_floor(found.window_s) > rule.tolerance:
            return f"a window of {found.window_s:.3g} s is too short for the tolerance"
        if found.sampling_half_width > rule.tolerance:
            return f"the interval of {100 * found.sampling_half_width:.2g} % is wider than the tolerance"
        if jumped_at_end(found.batches.step_times_s()):
            return "the step time jumped near the end of the window, and what follows may be what lasts"
        return ""
