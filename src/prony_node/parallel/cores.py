"""Keeping a rank and its loaders on the cores that the trial names."""

from __future__ import annotations

import os

from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError


def allowed_cores() -> list[int]:
    """The cores this process may use, which is not always all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def wanted_cores(text: str, allowed: list[int]) -> list[int]:
    """`4` is the first four allowed cores, `25%` a quarter of them (one at least); `0-3,8` are those cores."""
    if text.endswith("%"):
        share = int(text[:-1])
        if not 1 <= share <= 100:
            raise RequestError(f"cores={text} is not possible: a share is 1% to 100%")
        return allowed[: max(1, len(allowed) * share // 100)]
    if is_digits(text):
        count = int(text)
        if not 1 <= count <= len(allowed):
            raise RequestError(f"cores={text}: this machine lets us use {len(allowed)} cores")
        return allowed[:count]
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise RequestError(f"cores={text}: {part} runs backwards; write {last}-{first}")
        chosen.update(range(int(first), int(last or first) + 1))
    outside = sorted(chosen - set(allowed))
    if outside:
        raise RequestError(f"cores={text}: core {outside[0]} is not among the allowed {allowed}")
    return sorted(chosen)


def share_of(cores: list[int], number: int, parts: int) -> list[int]:
    """What one of several processes of a machine gets: neighbours, and one core at least."""
    each = len(cores) // parts
    return cores[number * each : (number + 1) * each] if each else [cores[number % len(cores)]]


def bind(cores: list[int]) -> bool:
    """Bind this process, and what it will start, to these cores; False where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cores)
    return True
