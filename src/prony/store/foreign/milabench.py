"""A report of milabench: the table that it prints, or the summary that it writes as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from prony.store.anchors import Anchor
from prony.store.foreign import ImportOptions, count_of, number_of, read_document
from prony_node.contract.errors import RequestError

FORM = "milabench"
MEBIBYTE = 2**20
_HEADER = re.compile(r"\s*(bench\s*\|)?.*\bperf\b.*\bpeak_memory\b.*")
_PRECISIONS = re.compile(r"-(tf32-fp16|fp16|fp32|tf32|bf16|fp8)$")


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """Rate and peak memory of every benchmark that did not fail."""
    if text.lstrip().startswith("{"):
        return _summary(read_document(text), given)
    return _table(text, given)


def _table(text: str, given: ImportOptions) -> list[Anchor]:
    """`bench | fail | n | ...` of newer reports, or columns set apart by spaces, with no name over the first."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if _HEADER.fullmatch(line)), None)
    if start is None:
        raise RequestError("there is no table of milabench in it (no line names perf and peak_memory)")
    barred = "|" in lines[start]
    names = _split(lines[start], barred)
    if names[0] != "bench":
        names = ["bench", *names]
    product = re.search(r"^\s*product:\s*(.+?)\s*$", text, re.MULTILINE)
    anchors: list[Anchor] = []
    for line in lines[start + 1 :]:
        cells = _split(line, barred)
        if not line.strip() or len(cells) != len(names):
            if anchors:
                break
            continue
        row = dict(zip(names, cells, strict=True))
        system = {"device": product[1]} if product and product[1] != "NA" else {}
        anchors += _anchors(row["bench"], row, system, given)
    return anchors


def _split(line: str, barred: bool) -> list[str]:
    return [cell.strip() for cell in line.split("|")] if barred else line.split()


def _summary(document: Any, given: ImportOptions) -> list[Anchor]:
    if not isinstance(document, dict):
        raise RequestError("it is no summary of milabench: an object with a benchmark under each name is expected")
    anchors = []
    for name, bench in document.items():
        rate = bench.get("train_rate") if isinstance(bench, dict) else None
        if not isinstance(bench, dict) or not isinstance(rate, dict):
            continue
        row = {"fail": bench.get("failures"), "n": bench.get("n"), "ngpu": bench.get("ngpu"), "perf": rate.get("mean")}
        mean, sem = number_of(rate.get("mean")), number_of(rate.get("sem"))
        if mean and sem is not None:
            row["sem%"] = f"{100 * sem / mean:.2f}%"
        loads = bench.get("gpu_load")
        peaks = [_peak(load) for load in loads.values()] if isinstance(loads, dict) else []
        row["peak_memory"] = max((peak for peak in peaks if peak is not None), default=None)
        anchors += _anchors(str(name), row, {}, given)
    return anchors


def _peak(load: Any) -> float | None:
    memory = load.get("memory") if isinstance(load, dict) else None
    return number_of(memory.get("max")) if isinstance(memory, dict) else None


def _anchors(name: str, row: Mapping[str, object], system: Mapping[str, object], given: ImportOptions) -> list[Anchor]:
    """A benchmark with failures is left out: what its mean is of cannot be said."""
    rate, failures = number_of(row.get("perf")), number_of(row.get("fail")) or 0
    if rate is None or math.isnan(rate) or failures > 0:
        return []
    precision = _PRECISIONS.search(name)
    said = {
        "workload": name,
        "mode": "train",
        "position": f"benchmark {name}",
        "devices": count_of(row.get("ngpu")) or None,
        "precision": precision[1] if precision else None,
        **system,
    }
    more = {key: row.get(key) for key in ("n", "sem%", "std%", "score", "weight", "batch_size")}
    note = "mean rate of one process; n processes ran beside each other"
    anchors = [
        given.anchor(FORM, {**said, "metric": "throughput", "value": rate, "unit": "items/s", "note": note}, more)
    ]
    peak = number_of(row.get("peak_memory"))
    if peak is not None and peak > 0:
        found = {**said, "metric": "peak_memory", "value": peak * MEBIBYTE, "unit": "B"}
        anchors.append(given.anchor(FORM, {**found, "note": "of the device, as its driver counts"}, more))
    return anchors
