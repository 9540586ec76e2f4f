"""How large the images of a run were, and how many boxes they had: counted, since no two batches are alike."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from torch import Tensor

from prony_node.data.boxes import COUNTS, IMAGES, SIZES

PERCENTILES = (5, 50, 95)


class Shapes:
    """A count that grows with every batch that passes. A batch on the device is waited for, so pass it before."""

    def __init__(self) -> None:
        self._counted: dict[str, Counter[int]] = {"height": Counter(), "width": Counter(), "boxes": Counter()}
        self._pixels = self._padded = 0

    def seen(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same batch, counted."""
        images, sizes = batch[IMAGES], batch[SIZES].tolist()
        for height, width in sizes:
            self._counted["height"][height] += 1
            self._counted["width"][width] += 1
            self._pixels += height * width
        self._counted["boxes"].update(batch[COUNTS].tolist())
        self._padded += len(sizes) * images.shape[-2] * images.shape[-1]
        return batch

    def document(self) -> dict[str, Any] | None:
        """For the record; None when no batch has passed."""
        images = self._counted["boxes"].total()
        if not images:
            return None
        spread = {name: summary(counted) for name, counted in self._counted.items()}
        return {"images": images, **spread, "padding_share": round(1 - self._pixels / self._padded, 6)}


def summary(counted: Counter[int]) -> dict[str, float]:
    """Mean, least, most and percentiles of what was counted: the least value that so many of it do not exceed."""
    total = counted.total()
    values = sorted(counted)
    reached = list(itertools.accumulate(counted[value] for value in values))
    found: dict[str, float] = {"mean": round(sum(value * counted[value] for value in values) / total, 6)}
    found |= {"least": values[0], "most": values[-1]}
    for percent in PERCENTILES:
        at = next(at for at, count in enumerate(reached) if count * 100 >= percent * total)
        found[f"p{percent}"] = values[at]
    return found
