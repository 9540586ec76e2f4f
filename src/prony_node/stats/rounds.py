"""Batches that differ and come round again: what each of them takes is not noise.

The batches of a detector's pool have different shapes, and one may take twice as long as another. Every round of the
pool has the same batches. So a window is cut to whole rounds, which makes its mean that of the pool, and the time that
each place in the round takes is removed before the noise is estimated. Over whole rounds that leaves the mean as it is.
"""

from __future__ import annotations

from statistics import fmean, median

from .blocks import Blocks

FEWEST_ROUNDS = 2


def incomplete_round(blocks: Blocks, period: int) -> int:
    """How many of the first blocks to leave out so that whole rounds remain; 0 where blocks do not lie on rounds.

    `period`: steps of a round, 0 where there is none.
    """
    places = _places(blocks, period)
    return len(blocks) % places if places else 0


def level_out(blocks: Blocks, period: int) -> tuple[Blocks, float]:
    """Blocks as if all batches were alike, and the factor by which the variance of the rest is too small.

    Blocks that do not lie on rounds are returned unchanged.
    """
    places = _places(blocks, period)
    if not places:
        return blocks, 1.0
    # The median: a stall is noise, and must not be taken for what a batch takes.
    usual = [median(blocks.times_s[place::places]) for place in range(places)]
    centre = fmean(usual)
    times_s = [time_s - (usual[number % places] - centre) for number, time_s in enumerate(blocks.times_s)]
    return Blocks(times_s, blocks.steps), len(blocks) / (len(blocks) - places)


def _places(blocks: Blocks, period: int) -> int:
    """Blocks of a round; 0 where they are not equal, a round is not whole blocks, or there are too few rounds."""
    size = blocks.steps[0] if blocks.steps else 0
    places, rest = divmod(period, size) if size else (0, 0)
    if rest or places < 2 or len(blocks) < FEWEST_ROUNDS * places or any(steps != size for steps in blocks.steps):
        return 0
    return places
