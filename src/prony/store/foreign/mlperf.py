"""A log of MLPerf Training: lines that begin with :::MLLOG (after whatever a launcher puts in front) and hold JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from prony.store.anchors import Anchor
from prony.store.foreign import ImportOptions, count_of, number_of
from prony_node.contract.errors import RequestError

FORM = "mlperf"
MARK = ":::MLLOG"
LONGEST_LINE = 2**20
# What the log says once, and the field of an anchor that it is.
ONCE = {"submission_benchmark": "workload", "submission_platform": "system", "global_batch_size": "batch_size"}
ALSO = ("submission_org", "submission_division", "submission_status", "seed", "opt_name", "opt_base_learning_rate")


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """Time from run_start to run_stop, the last evaluation, and the throughput that the log tracks."""
    events = _events(text)
    said: dict[str, object] = {"mode": "train"}
    more: dict[str, object] = {}
    for event in events:
        if event.key in ONCE and event.value is not None:
            said[ONCE[event.key]] = event.value
        if event.key in ALSO and event.value is not None:
            more[event.key] = event.value
    said["batch_size"] = count_of(said.get("batch_size"))
    anchors = []
    for metric, value, unit, note in _figures(events):
        anchors.append(given.anchor(FORM, {**said, "metric": metric, "value": value, "unit": unit, "note": note}, more))
    return anchors


@dataclass(frozen=True)
class LogEvent:
    """A line of the log."""

    key: str
    value: object
    metadata: Mapping[str, object]
    time_ms: object


def _events(text: str) -> list[LogEvent]:
    """The events of the log. A line that is no event is the program's own output, or was cut off: it is passed over."""
    events = []
    for line in text.splitlines():
        _, mark, rest = line.partition(MARK)
        if not mark or len(rest) > LONGEST_LINE:
            continue
        try:
            event = json.loads(rest)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("key"), str):
            metadata = event.get("metadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            events.append(LogEvent(event["key"], event.get("value"), metadata, event.get("time_ms")))
    if not events:
        raise RequestError(f"it has no line with {MARK} and an event")
    return events


def _figures(events: list[LogEvent]) -> list[tuple[str, float, str | None, str | None]]:
    """Metric, value, unit and note of what the log measured."""
    figures: list[tuple[str, float, str | None, str | None]] = []
    starts, stops = (_all(events, key) for key in ("run_start", "run_stop"))
    if len(starts) > 1 or len(stops) > 1:
        raise RequestError("it holds several runs (run_start is there more than once): give the log of one")
    if starts and stops:
        status = str(stops[0].metadata.get("status", "not stated"))
        begin, end = (number_of(event.time_ms) for event in (starts[0], stops[0]))
        if begin is not None and end is not None and end >= begin:
            reached = status == "success"
            name = "time_to_quality" if reached else "run_time"  # a run that was given up reached nothing
            figures.append((name, (end - begin) / 1000, "s", f"run_start to run_stop; status {status}"))
    scores = [event for event in events if event.key in ("eval_accuracy", "eval_loss")]
    score = number_of(scores[-1].value) if scores else None
    if score is not None:
        last = scores[-1]
        epoch = last.metadata.get("epoch_num", last.metadata.get("samples_count"))
        unit = last.key.removeprefix("eval_")
        figures.append(("quality", score, unit, None if epoch is None else f"epoch or samples {epoch}"))
    rates = [_rate(event) for event in _all(events, "tracked_stats")]
    known = [rate for rate in rates if rate is not None]
    if known:
        note = f"mean of {len(known)} figures that the log tracks"
        figures.append(("throughput", sum(known) / len(known), "samples/s", note))
    return figures


def _all(events: list[LogEvent], key: str) -> list[LogEvent]:
    return [event for event in events if event.key == key]


def _rate(event: LogEvent) -> float | None:
    value = event.value
    return number_of(value.get("throughput")) if isinstance(value, dict) else None
