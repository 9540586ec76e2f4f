"""The learning curves of some runs, as a plot wants them: a line a run, coloured by what varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.learning import Learning, Point, learning_of, thinned
from prony.analysis.settings import DRAWN, Record, settings_of, show_setting, varying
from prony.analysis.stated import word

MOST_POINTS = 200  # of a line


@dataclass(frozen=True)
class Line:
    """The curve of one run."""

    run: str
    colour: str  # the value of what varies; empty where nothing does
    points: list[Point]


@dataclass(frozen=True)
class Curves:
    """Runs of one workload on one data set that were scored alike."""

    workload: str
    score: str
    targets: list[float]
    colour_name: str  # what varies: a setting, several, or the seed; empty where nothing does
    colour_values: list[str]
    lines: list[Line]


def curves(records: Sequence[Record]) -> list[Curves]:
    """The plots that these records allow, one a workload, score, data set and device."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        learning = learning_of(record)
        if learning is not None and any(point.score is not None for point in learning.curve):
            groups.setdefault(_group(record, learning), []).append(record)
    return [_curves(group) for group in groups.values()]


def _group(record: Record, learning: Learning) -> tuple[str, ...]:
    data, devices = record.get("data"), record["facts"].get("devices") or [{}]
    which = word(data.get("fingerprint")) if isinstance(data, dict) else None
    return record["trial"]["workload"], learning.score, str(which), str(devices[0].get("name"))


def _curves(records: list[Record]) -> Curves:
    names = varying(records)
    names = [name for name in names if name not in DRAWN] or names
    lines, targets = [], set()
    for record in records:
        learning = learning_of(record)
        if learning is None:
            continue
        settings = settings_of(record)
        colour = ", ".join(show_setting(settings.get(name)) for name in names)
        lines.append(Line(str(record["id"]), colour, thinned(learning, MOST_POINTS)))
        targets |= set() if learning.target is None else {learning.target}
        score = learning.score
    return Curves(
        workload=records[0]["trial"]["workload"],
        score=score,
        targets=sorted(targets),
        colour_name=", ".join(names),
        colour_values=sorted(dict.fromkeys(line.colour for line in lines), key=_by_size) if names else [],
        lines=lines,
    )


def _by_size(text: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(text), ""
    except ValueError:
        return 1, 0.0, text
