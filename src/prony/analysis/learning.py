"""What a run learned of its data set: a record's `learning`, of which any part may be missing or of another type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prony.analysis.stated import count, number, word

Record = dict[str, Any]

MOST_ROWS = 12


@dataclass(frozen=True)
class Point:
    """The state after an epoch: counts and times since the start, score and loss of the test split."""

    epoch: int | None
    steps: int | None
    samples: int | None
    training_s: float | None  # without evaluation
    score: float | None
    loss: float | None


@dataclass(frozen=True)
class Learning:
    """A learning curve, with the target it was run for."""

    score: str  # its name: accuracy
    better: str | None  # "more" or "less"
    target: float | None
    until: str | None  # the target as it was asked for
    reached: bool
    reached_epoch: int | None
    reached_steps: int | None
    test_samples: int | None
    epochs: int | None  # at most this many were asked for
    curve: tuple[Point, ...]


@dataclass(frozen=True)
class Quality:
    """The score that stands for a run, and how long its target took."""

    score: str
    value: float
    low: float | None
    high: float | None
    epoch: int | None  # after which it was scored
    target: float | None
    reached: bool
    time_s: float | None  # to the target


def learning_of(record: Record) -> Learning | None:
    """The learning of a run; None where it is not a run that learned, or nothing of it can be read."""
    stated = record.get("learning")
    if not isinstance(stated, dict) or not stated:
        return None
    score = word(stated.get("score")) or "score"
    better = stated.get("better")
    reached = stated.get("reached")
    place = reached if isinstance(reached, dict) else {}
    curve = stated.get("curve")
    return Learning(
        score=score,
        better=better if better in ("more", "less") else None,
        target=number(stated.get("target")),
        until=word(stated.get("until")),
        reached=isinstance(reached, dict),
        reached_epoch=count(place.get("epoch")),
        reached_steps=count(place.get("steps")),
        test_samples=count(stated.get("test_samples")),
        epochs=count(stated.get("epochs")),
        curve=tuple(_point(entry, score) for entry in (curve if isinstance(curve, list) else []) if _is_point(entry)),
    )


def quality_of(record: Record) -> Quality | None:
    """The quality of a run as its metrics state it; None where it has none."""
    metric = record["metrics"].get("quality") or {}
    value = number(metric.get("value"))
    if value is None:
        return None
    learning = learning_of(record)
    curve = learning.curve if learning else ()
    time = record["metrics"].get("time_to_quality") or {}
    return Quality(
        score=word(metric.get("unit")) or "score",
        value=value,
        low=number(metric.get("low")),
        high=number(metric.get("high")),
        epoch=next((point.epoch for point in reversed(curve) if point.score == value), None),
        target=learning.target if learning else None,
        reached=learning.reached if learning else False,
        time_s=number(time.get("value")),
    )


def thinned(learning: Learning, most: int = MOST_ROWS) -> list[Point]:
    """At most so many points, evenly spread; the first, the last and the one of the target are among them."""
    curve = learning.curve
    if len(curve) <= most:
        return list(curve)
    kept = {round(place * (len(curve) - 1) / (most - 1)) for place in range(most)}
    marked = next((place for place, point in enumerate(curve) if is_reached(learning, point)), None)
    if marked is not None and marked not in kept:
        inner = kept - {0, len(curve) - 1}
        kept.discard(min(inner, key=lambda place: abs(place - marked)))
        kept.add(marked)
    return [curve[place] for place in sorted(kept)]


def is_reached(learning: Learning, point: Point) -> bool:
    """Whether the target was first reached at this point."""
    return learning.reached_epoch is not None and point.epoch == learning.reached_epoch


def _is_point(entry: Any) -> bool:
    return isinstance(entry, dict) and bool(entry)


def _point(entry: dict[str, Any], score: str) -> Point:
    return Point(
        epoch=count(entry.get("epoch")),
        steps=count(entry.get("steps")),
        samples=count(entry.get("samples")),
        training_s=number(entry.get("training_s")),
        score=number(entry.get(score)),
        loss=number(entry.get("loss")),
    )
