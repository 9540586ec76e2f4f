"""Batches that come round again: what each of them takes is no noise, and is taken out before noise is looked for.

No two batches of a detector's pool have one shape, and one may take twice as long as another. A window of two and a
half rounds would have as much to doubt as the sizes of images differ, though every round has the same ones. So each
block is less what its place in the round takes more than the mean of all places. The mean over whole rounds stays what
it was, and over a part of one no batch counts more than another.
"""

from __future__ import annotations

from statistics import fmean, median_low

from .blocks import Blocks

FEWEST_ROUNDS = 2


def level_out(blocks: Blocks, period: int) -> tuple[Blocks, float]:
    """Blocks as if all batches were alike, and by what the variance of the rest is too small.

    `period`: steps of a round, 0 where there is none. Blocks that cannot be laid onto rounds come back as they are.
    """
    size = blocks.steps[0] if blocks.steps else 0
    places, rest = divmod(period, size) if size else (0, 0)
    whole = next((number for number, steps in enumerate(blocks.steps) if steps != size), len(blocks))
    if rest or places < 2 or whole < FEWEST_ROUNDS * places:
        return blocks, 1.0
    # The lower middle: a stall is noise, and must not be taken for what a batch takes.
    usual = [median_low(blocks.times_s[place:whole:places]) for place in range(places)]
    centre = fmean(usual)
    times_s = [time_s - (usual[number % places] - centre) for number, time_s in enumerate(blocks.times_s[:whole])]
    return Blocks(times_s + blocks.times_s[whole:], blocks.steps), whole / (whole - places)
