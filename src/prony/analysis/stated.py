"""Values that a record states, taken for what they are: a record may come from elsewhere, and hold anything."""

from __future__ import annotations

import math
from typing import Any

LONGEST_WORD = 60


def number(value: Any) -> float | None:
    """A finite number; None for whatever else a stranger's record holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """A whole number of at least 0."""
    found = number(value)
    return int(found) if found is not None and found >= 0.0 and found == int(found) else None


def word(value: Any, longest: int = LONGEST_WORD) -> str | None:
    """A text on one line, cut where it is too long to be shown."""
    if not isinstance(value, str):
        return None
    printable = (sign if sign.isprintable() else " " for sign in value[: 2 * longest])
    text = " ".join("".join(printable).split())
    return f"{text[: longest - 3]}..." if len(text) > longest else text or None
