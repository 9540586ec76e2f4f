"""The metrics of a record as lines: what was not measured for one and the same reason stands together."""

from __future__ import annotations

from dataclasses import dataclass

from prony.analysis.settings import Record
from prony.report.numbers import format_metric
from prony_node.contract.metrics import METRICS
from prony_node.contract.record import window_of

TOGETHER_FROM = 3


@dataclass(frozen=True)
class Line:
    name: str
    value: str
    source: str = ""
    help: str = ""


def metric_lines(record: Record) -> list[Line]:
    """In the order of the vocabulary, what was measured first."""
    metrics, window_s = record["metrics"], window_of(record)
    names = [name for name in METRICS if name in metrics] + [name for name in metrics if name not in METRICS]
    absent: dict[str, list[str]] = {}
    for name in names:
        if metrics[name].get("value") is None and metrics[name].get("reason"):
            absent.setdefault(metrics[name]["reason"], []).append(name)
    grouped = {name for those in absent.values() if len(those) >= TOGETHER_FROM for name in those}
    lines = [
        Line(
            name,
            format_metric(name, metrics[name], window_s),
            str(metrics[name].get("source") or ""),
            METRICS[name].help if name in METRICS else "",
        )
        for name in names
        if name not in grouped
    ]
    for reason, those in absent.items():
        if len(those) >= TOGETHER_FROM:
            lines.append(Line("not measured", f"{', '.join(those)}: {reason}"))
    return lines
