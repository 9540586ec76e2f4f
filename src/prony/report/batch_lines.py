"""The tries of batch_size=auto as lines: which batch, whether it fitted, and what it held.

A record's `auto_batch` may have been written elsewhere, so any part of it may be missing or of another type.
"""

from __future__ import annotations

from prony.analysis.settings import Record
from prony.analysis.stated import count, number, word
from prony.report.numbers import format_bytes

LONGEST_REASON = 200


def batch_lines(record: Record) -> list[tuple[str, str]]:
    """A batch and what became of it, in the order of the tries; none where no batch was looked for."""
    tries = record.get("auto_batch")
    lines = []
    for tried in tries if isinstance(tries, list) else []:
        batch = count(tried.get("batch")) if isinstance(tried, dict) else None
        if batch is None:
            continue
        held, room = number(tried.get("memory")), number(tried.get("room"))
        if tried.get("fits") is not True:
            reason = word(tried.get("reason"), LONGEST_REASON)
            lines.append((f"{batch:,}", "does not fit" + (f": {reason}" if reason else "")))
        elif held is None or room is None:
            lines.append((f"{batch:,}", "fits"))
        else:
            lines.append((f"{batch:,}", f"fits: {format_bytes(held)} of {format_bytes(room)}"))
    return lines
