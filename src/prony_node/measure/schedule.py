"""The learning rate of a run that trains to a quality: up in a straight line, then down to nothing at the last step."""

from __future__ import annotations

WARM_UP = 0.2  # share of the steps until the highest rate


def rate_factor(step: int, steps: int) -> float:
    """The share of the highest rate that step number `step`, from 0, of so many takes."""
    highest = max(1.0, WARM_UP * steps)
    if step + 1 <= highest:
        return (step + 1) / highest
    return max(0.0, (steps - step) / (steps - highest + 1))
