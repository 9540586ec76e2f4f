"""What each rank was bound to, as lines.

A record's `binding` may have been written elsewhere, so any part of it may be missing or of another type.
"""

from __future__ import annotations

from typing import Any

from prony.analysis.settings import Record
from prony.analysis.stated import count, word

LONGEST = 300


def binding_lines(record: Record) -> list[tuple[str, str]]:
    """A rank and its cores and memory, or why it has none of its own; ranks with the same stand together."""
    stated = record.get("binding")
    said: dict[str, list[str]] = {}
    for one in stated if isinstance(stated, list) else []:
        rank = count(one.get("rank")) if isinstance(one, dict) else None
        if rank is not None:
            said.setdefault(_text(one), []).append(str(rank))
    return [(f"rank {', '.join(ranks)}", text) for text, ranks in said.items()]


def _text(one: dict[str, Any]) -> str:
    cores, memory, reason = (word(one.get(name), LONGEST) for name in ("cores", "memory", "reason"))
    parts = [f"cores {cores}" if cores else "", f"memory {memory}" if memory else "", reason or ""]
    return "; ".join(filter(None, parts)) or "not said"
