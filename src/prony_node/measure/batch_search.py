"""The search for the largest batch that fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


class OutOfMemory(RuntimeError):
    """Known to be too large before anything was allocated."""


CLOSE = 0.04  # the search ends when the smallest batch that did not fit is this near to the largest that did
STEP = 0.03  # up or down from a batch that is expected to be nearly the answer; with rounding it stays within CLOSE
AIM = 0.985  # of the predicted batch: where the prediction is right this fits, and a step up ends the search
FIRST, SECOND = 8, 32  # cheap to try
FARTHEST = 16  # times the largest that fitted: a line through small batches is not believed beyond
MOST = 2**20  # samples per step, where memory never ends
MOST_TRIES = 40  # a device whose need grows with the batch takes fewer, whatever it reports
MULTIPLES = (8, 4, 2)  # that suit matrix units, taken where that moves the batch by ROUNDING at most
ROUNDING = 0.005


@dataclass(frozen=True)
class Tried:
    """What became of one batch size."""

    batch: int
    fits: bool
    memory: int | None = None  # bytes held at most, where it fits and that is known
    room: int | None = None  # bytes that it might have held
    reason: str = ""  # why it does not fit
    most: int | None = None  # samples that a batch can have at all, where that is known


def largest_that_fits(try_batch: Callable[[int], Tried], most: int = MOST, least: int = 1) -> int:
    """The largest batch that was tried and fits; one that is 5 % larger, or has one sample more, does not.

    Predictions from what was held only choose what to try. What fits and what does not is always tried: an allocator
    that is near its limit lives on less than it would take.
    """
    fitting: list[Tried] = []  # ascending
    too_large: int | None = None
    between: list[bool] = []  # what became of the latest batches between one that fits and one that does not
    for _ in range(MOST_TRIES):
        misled = between[-2:] == [False] * 2 or between[-3:] == [True] * 3
        batch = next_batch(fitting, too_large, most, least=least, bisect=misled)
        if batch is None:
            break
        tried = try_batch(batch)
        if fitting and too_large is not None:
            between = [] if misled else [*between, tried.fits]
        if tried.fits:
            fitting.append(tried)
            most = min(most, tried.most or most)
        elif batch == least:
            fewest = "one sample fits" if least == 1 else f"{least} samples fit"
            raise OutOfMemory(f"not even {fewest}: {tried.reason}")
        else:
            too_large = batch
    return fitting[-1].batch


def next_batch(
    fitting: list[Tried], too_large: int | None, most: int, *, least: int = 1, bisect: bool = False
) -> int | None:
    """What to try next; None when the largest that fits is known well enough."""
    if not fitting:
        return min(max(FIRST, least), most) if too_large is None else least
    largest = fitting[-1].batch
    if too_large is None:
        return None if largest >= most else _rounded(_grown(fitting), largest, most + 1)
    if too_large <= max(largest + 1, largest * (1 + CLOSE)):
        return None
    predicted = predict(fitting)
    if predicted is None or bisect:
        return _rounded(math.sqrt(largest * too_large), largest, too_large)
    # No nearer to either end than where the expected answer ends the search.
    wanted = max(AIM * predicted, largest * (1 + STEP))
    return _rounded(min(wanted, too_large / (1 + STEP)), largest, too_large)


def predict(fitting: list[Tried]) -> float | None:
    """Where the line through the two largest batches meets the room; through the origin when there is but one."""
    known = [(tried.batch, tried.memory) for tried in fitting if tried.memory]
    room = fitting[-1].room
    if not known or not room:
        return None
    (batch, memory), (before, less) = known[-1], known[-2] if len(known) > 1 else (0, 0)
    if memory <= less:
        return None  # no cost to be seen between them
    return batch + max(0.0, room - memory) * (batch - before) / (memory - less)


def _grown(fitting: list[Tried]) -> float:
    """A larger batch, while everything has fitted: the predicted one, or a step up, which doubles when it goes on."""
    largest, predicted = fitting[-1].batch, predict(fitting)
    wanted = 4.0 * largest if predicted is None else AIM * predicted
    if len(fitting) == 1:
        wanted = max(wanted, SECOND)
    steps_up = sum(_nearly_full(fitting[: count + 1]) for count in range(len(fitting)))
    least = largest * (1 + STEP * 2 ** max(0, steps_up - 2))
    return min(max(wanted, least), largest * FARTHEST)


def _nearly_full(fitting: list[Tried]) -> bool:
    predicted = predict(fitting)
    return predicted is not None and predicted < 1.1 * fitting[-1].batch


def _rounded(batch: float, above: int, below: int) -> int:
    """A whole number between the two: the nearest multiple that suits matrix units, where one is near."""
    whole = min(max(round(batch), above + 1), below - 1)
    for multiple in MULTIPLES:
        near = round(whole / multiple) * multiple
        if multiple / 2 <= ROUNDING * whole and above < near < below:
            return near
    return whole
