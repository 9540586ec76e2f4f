"""The data set of a run as lines: which it was, how much of it, where it was held and what was done to have it there.

A record's `data` may have been written elsewhere, so any part of it may be missing or of another type.
"""

from __future__ import annotations

from typing import Any

from prony.analysis.settings import Record
from prony.analysis.stated import count, number, word
from prony.report.numbers import format_bytes, format_seconds

LONGEST_PATH = 400
HELD = {"device": "in device memory", "memory": "in host memory", "files": "read from its files"}
MOST_FACTS = 8  # of a generated set


def data_lines(record: Record) -> list[tuple[str, str]]:
    """A label and a text for each part that is known; none where the run had no data set and one shape of batch."""
    found, work = record.get("data"), record.get("work")
    data = found if isinstance(found, dict) else {}
    lines = [
        ("set", _which(data)),
        ("samples", _size(data)),
        ("held", HELD.get(str(data.get("held")), word(data.get("held")))),
        ("decoded", _decoded(data.get("decoded_on_device"))),
        ("fingerprint", word(data.get("fingerprint"))),
        ("staged", _staged(data.get("staged"))),
        ("generated", _generated(data.get("generated"))),
        ("images", _shapes(work)),
        ("waits", _waits(work)),
    ]
    return [(label, text) for label, text in lines if text]


def _which(data: dict[str, Any]) -> str:
    kind, folder, source = word(data.get("kind")), _path(data.get("folder")), _path(data.get("source"))
    place = f"in {folder}" if folder else ""
    asked = f"asked for as {source}" if source and source != folder else ""
    return ", ".join(part for part in (" ".join(filter(None, (kind, place))), asked) if part)


def _size(data: dict[str, Any]) -> str:
    parts = []
    for name, words in (("samples", "to train"), ("test_samples", "to test"), ("classes", "classes")):
        found = count(data.get(name))
        if found is not None:
            parts.append(f"{found:,} {words}")
    size = number(data.get("bytes"))
    return ", ".join(parts + ([format_bytes(size)] if size is not None else []))


def _shapes(work: Any) -> str:
    """How large images were and how many boxes they had, where that differs from batch to batch."""
    shapes = work.get("shapes") if isinstance(work, dict) else None
    if not isinstance(shapes, dict):
        return ""
    parts = []
    for name, unit in (("height", "high"), ("width", "wide"), ("boxes", "boxes")):
        spread = shapes.get(name)
        stated = spread if isinstance(spread, dict) else {}
        mean, low, high = (number(stated.get(key)) for key in ("mean", "p5", "p95"))
        if mean is not None and low is not None and high is not None:
            parts.append(f"{mean:.4g} {unit} ({low:g} to {high:g})")
    return ", ".join(parts) + (", on average and nine in ten of them" if parts else "")


def _waits(work: Any) -> str:
    """For the device, of the workload itself; what reads a loss or a count has to."""
    per_step = number(work.get("own_synchronisations_per_step")) if isinstance(work, dict) else None
    return "" if per_step is None else f"{per_step:.4g} per step for the device, the workload's own"


def _decoded(by_device: Any) -> str:
    """How decode=both divided the last batches."""
    part = number(by_device)
    return "" if part is None else f"{part:.0%} by the device, the rest by workers"


def _staged(staged: Any) -> str:
    if not isinstance(staged, dict):
        return ""
    files, size, copied = (number(staged.get(name)) for name in ("files", "bytes", "copied_bytes"))
    folder, seconds = _path(staged.get("folder")), number(staged.get("seconds"))
    parts = [f"to {folder}"] if folder else []
    parts += [f"{files:,.0f} file{'s' if files != 1 else ''}"] if files is not None else []
    parts += [format_bytes(size)] if size is not None else []
    parts += [f"{format_bytes(copied)} of it copied now"] if copied is not None else []
    return ", ".join(parts) + (f" in {format_seconds(seconds)}" if seconds is not None else "")


def _generated(generated: Any) -> str:
    """What a manifest says of itself, whatever it says; a checksum of a list is for no reader."""
    if not isinstance(generated, dict):
        return ""
    facts = [(name, _plain(value)) for name, value in generated.items() if not str(name).endswith("sha256")]
    return ", ".join(f"{word(str(name))} {text}" for name, text in facts[:MOST_FACTS] if text)


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return "on" if value else "off"
    found = number(value)
    return word(value) if found is None else f"{found:,.10g}"


def _path(value: Any) -> str | None:
    return word(value, LONGEST_PATH)
