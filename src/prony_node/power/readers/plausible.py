"""Whether what a sensor said can be true at all."""

from __future__ import annotations

import math
from decimal import Decimal

from prony_node.power.sensor import SensorLost

MOST_W = 1e6  # no node draws a megawatt: more is a register full of ones
MOST_J = 1e15  # a node at 10 kW needs three thousand years for it


def plausible_w(value: object, what: str) -> float:
    """Watts, when they are a number that a part of a node can draw; SensorLost otherwise."""
    return _within(value, what, MOST_W, "W")


def plausible_j(value: object, what: str) -> float:
    """Joules of a counter, when they are a number that one can have reached; SensorLost otherwise."""
    return _within(value, what, MOST_J, "J")


def _within(value: object, what: str, most: float, unit: str) -> float:
    number = as_number(value)
    if number is None:
        raise SensorLost(f"{what} holds no number: {str(value)[:40]!r}")
    if not 0.0 <= number <= most:
        raise SensorLost(f"{what} says {number:.6g} {unit}, which cannot be")
    return number


def as_number(value: object) -> float | None:
    """A number of a JSON document; None for everything else, not-a-number and infinity included."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except (OverflowError, ArithmeticError, ValueError):
        return None
    return number if math.isfinite(number) else None
