"""The learning of a run as lines and as a small table: what was scored, the target, and the curve."""

from __future__ import annotations

from dataclasses import dataclass

from prony.analysis.learning import Learning, Point, is_reached, learning_of, thinned
from prony.analysis.settings import Record
from prony.report.numbers import NOTHING, format_number, format_seconds

REACHED = "target reached"


@dataclass(frozen=True)
class CurveTable:
    """A learning curve for a reader: texts, with the row in which the target was reached."""

    header: list[str]
    rows: list[list[str]]
    reached: int | None  # which row; None where none is
    left_out: int  # epochs that are not among the rows


def learning_lines(record: Record) -> list[tuple[str, str]]:
    """A label and a sentence for what was scored and for the target; none where nothing was learned."""
    learning = learning_of(record)
    if learning is None:
        return []
    of = f", {learning.test_samples:,} samples" if learning.test_samples else ""
    return [("score", f"{learning.score} on the test split{of}, after every epoch"), ("target", _target(learning))]


def curve_table(record: Record) -> CurveTable | None:
    """The curve, thinned to a dozen rows; None where there is none."""
    learning = learning_of(record)
    if learning is None or not learning.curve:
        return None
    points = thinned(learning)
    with_loss = learning.score != "loss" and any(point.loss is not None for point in learning.curve)
    marked = [place for place, point in enumerate(points) if is_reached(learning, point)]
    return CurveTable(
        header=["epoch", "steps", "training time", learning.score, *(["loss"] if with_loss else [])],
        rows=[_row(point, with_loss) for point in points],
        reached=marked[0] if marked else None,
        left_out=len(learning.curve) - len(points),
    )


def _target(learning: Learning) -> str:
    made = learning.curve[-1].epoch if learning.curve else None
    epochs = made if made is not None else learning.epochs
    length = "" if epochs is None else f"{epochs:,} epoch{'s' if epochs != 1 else ''}"
    if learning.target is None:
        return f"none: trained for {length}" if length else "none"
    asked = learning.until or f"{learning.score} {learning.target:.6g}"
    if not learning.reached:
        return f"{asked}, not reached" + (f" in {length}" if length else "")
    epoch, steps = learning.reached_epoch, learning.reached_steps
    at = "" if epoch is None else f" after epoch {epoch:,}"
    return f"{asked}, reached{at}" + ("" if steps is None else f", {steps:,} steps")


def _row(point: Point, with_loss: bool) -> list[str]:
    cells = [_count(point.epoch), _count(point.steps), format_seconds(point.training_s), _number(point.score)]
    return [*cells, _number(point.loss)] if with_loss else cells


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else format_number(value)
