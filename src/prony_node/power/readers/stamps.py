"""Readings that a driver stamped with the wall clock, placed on the monotonic clock; the wall clock may be stepped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

FRESH_S = 1.0  # a driver that samples has its newest reading no older than this
AHEAD_S = 0.05  # a stamp this far in the future is rounding, further is another clock
STEP_S = 0.05  # a change of the wall clock against the monotonic one that is no slewing (500 ppm at most)
RELEARN_S = 5.0  # longer than a driver's buffer (2.4 s on an H200)


def clocks() -> tuple[float, float]:
    """The wall clock and the monotonic clock at one instant."""
    before = time.monotonic()
    wall_s = time.time()
    return wall_s, (before + time.monotonic()) / 2


class DriverStamps:
    """The stamps of one sensor's buffer. What it places never runs backwards and never lies in the future.

    Normally a stamp minus the offset of the two clocks is the time. When the wall clock was stepped, old stamps and new
    ones are of different clocks: those before the step are dropped (a gap, which the sampler sees). When the newest
    stamp is nowhere near now, the stamps are of a clock of their own, and the newest one is held to be now.
    """

    def __init__(self) -> None:
        self._newest_us = 0
        self._last_s = float("-inf")
        self._offset_s: float | None = None  # wall - monotonic, at the last call
        self._anchor_s: float | None = None  # stamp - monotonic, where the stamps are of another clock
        self._age_s: float | None = None  # of the newest stamp at the last call, by the wall clock
        self._relearn_until_s = float("-inf")
        self._known: deque[int] = deque(maxlen=1024)

    def since_us(self, wall_s: float, now_s: float) -> int:
        """The stamp to ask from: the newest seen, or zero after a step back, which would hide what is new."""
        if self._offset_s is not None and wall_s - now_s < self._offset_s - STEP_S:
            self._relearn_until_s = now_s + RELEARN_S
        return 0 if now_s < self._relearn_until_s else self._newest_us

    def place(self, stamps_us: Sequence[int], wall_s: float, now_s: float) -> list[float | None]:
        """The time of each stamp, oldest first; None for one that is known already or cannot be placed."""
        times: list[float | None] = [None] * len(stamps_us)
        if stamps_us:
            base_s = self._base_s(stamps_us[-1] / 1e6, wall_s, now_s)
            start = _after_step(stamps_us)
            if start:
                self._known.clear()  # a clock set back by whole ticks gives the same stamps once more
            known = set(self._known)
            for index in range(start, len(stamps_us)):
                if base_s is None or stamps_us[index] in known:
                    continue
                at_s = min(stamps_us[index] / 1e6 - base_s, now_s)
                if at_s > self._last_s:
                    times[index] = self._last_s = at_s
            self._newest_us = stamps_us[-1]
            self._known.extend(stamp for stamp in stamps_us[start:] if stamp not in known)
        self._offset_s = wall_s - now_s
        return times

    def _base_s(self, newest_s: float, wall_s: float, now_s: float) -> float | None:
        """What to take from a stamp to have its time; None while nobody can tell."""
        offset_s, age_s, last_age_s = wall_s - now_s, wall_s - newest_s, self._age_s
        step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        stepped = abs(step_s) > STEP_S
        if stepped and self._anchor_s is None and last_age_s is not None and abs(age_s - last_age_s - step_s) < AHEAD_S:
            self._anchor_s = self._offset_s  # the stamps did not follow the step
        self._age_s = age_s
        bases_s = [offset_s] if self._anchor_s is None else [offset_s, self._anchor_s]
        ages_s = {base_s: now_s - (newest_s - base_s) for base_s in bases_s}
        good = [base_s for base_s in bases_s if -AHEAD_S <= ages_s[base_s] <= FRESH_S]
        if good:
            best_s = min(good, key=lambda base_s: abs(ages_s[base_s]))
            self._anchor_s = None if best_s == offset_s else best_s
            return best_s
        lags = last_age_s is not None and abs(age_s - last_age_s) < AHEAD_S
        if age_s < 0.0 or stepped or lags:
            self._anchor_s = newest_s - now_s
            return self._anchor_s
        # Old, by a clock that was not touched: the driver has stopped sampling. On the first call it could be either.
        return offset_s if last_age_s is not None else None


def _after_step(stamps_us: Sequence[int]) -> int:
    """Where the last ascending part starts: stamps that fall were made before the clock was set back."""
    falls = [index for index in range(1, len(stamps_us)) if stamps_us[index] <= stamps_us[index - 1]]
    return falls[-1] if falls else 0
