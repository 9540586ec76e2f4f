"""How much of a batch the device decodes and how much the workers do, found from how fast each of them is."""

from __future__ import annotations

import torch

FIRST = 0.25  # of decode=both, until both sides were seen at work
LEAST, MOST = 1 / 32, 31 / 32  # a side with nothing to do has no speed to be seen
KEPT = 0.9  # of what was known of a speed, when another batch was seen


class Share:
    """The part of every batch that is left to the device; seen by the workers as it changes.

    Two sides that work beside each other are done at the same time when each has a part by its speed. Neither speed
    depends much on the parts, so that there is nothing to swing. Where the step is slower than both, nothing waits.
    """

    def __init__(self, part: float | None, workers: int = 1) -> None:
        """`part` stays as it is; None is found out."""
        self._fixed = part is not None
        self._workers = max(1, workers)
        # In memory that processes share, whether they are forked or not.
        self._part = torch.tensor([FIRST if part is None else part], dtype=torch.float64).share_memory_()
        self._seconds: dict[str, float] = {}  # for an image, of all workers together and of the device

    @property
    def part(self) -> float:
        return float(self._part)

    @property
    def found(self) -> float | None:
        """The part, where it was not given."""
        return None if self._fixed else self.part

    def count(self, images: int) -> int:
        """How many of so many images the device decodes."""
        count = round(self.part * images)
        return count if self._fixed or images < 2 else min(images - 1, max(1, count))

    def saw(self, by_workers: int, worker_s: float, by_device: int, device_s: float) -> None:
        """How long one worker took for its images, and the device for the others of the batch."""
        if self._fixed or not by_workers or not by_device:
            return
        self._note("workers", worker_s / by_workers / self._workers)
        self._note("device", device_s / by_device)
        wanted = self._seconds["workers"] / max(sum(self._seconds.values()), 1e-12)
        self._part.fill_(min(MOST, max(LEAST, wanted)))

    def _note(self, side: str, seconds: float) -> None:
        known = self._seconds.get(side, seconds)
        self._seconds[side] = KEPT * known + (1 - KEPT) * seconds
