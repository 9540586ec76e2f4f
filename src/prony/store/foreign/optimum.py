"""A benchmark report of optimum-benchmark: latency, throughput, energy and memory of each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prony.store.anchors import Anchor, FoundValues
from prony.store.foreign import ImportOptions, count_of, number_of, read_document
from prony_node.contract.errors import RequestError

FORM = "optimum"
JOULES = {"kWh": 3.6e6, "Wh": 3.6e3, "J": 1.0}
BYTES = {"MB": 1e6, "GB": 1e9, "B": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3}
PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
LEFT_OUT = ("warmup", "load", "load_model", "load_dataset", "preprocess_dataset")  # of which no rate is meant


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """The figures of every phase, in the units of Prony."""
    document = read_document(text)
    report = document.get("report", document) if isinstance(document, dict) else None
    if not isinstance(report, dict):
        raise RequestError("it is no report of optimum-benchmark: an object with a phase under each name is expected")
    said, more = _configuration(document.get("config"))
    anchors = []
    for phase, measured in report.items():
        if not isinstance(measured, dict) or phase in LEFT_OUT:
            continue
        mode = "train" if phase in ("train", "overall") else "infer"
        for found in _figures(measured):
            place = {"position": f"phase {phase}", "mode": mode}
            anchors.append(given.anchor(FORM, {**said, **place, **vars(found)}, {**more, "phase": phase}))
    return anchors


@dataclass(frozen=True)
class PhaseFigure:
    """What a phase measured, in the units of Prony."""

    metric: str
    value: float
    unit: str


def _figures(measured: Mapping[str, Any]) -> list[PhaseFigure]:
    """What one phase measured; a figure whose unit is not known is left out."""
    figures = []
    for group, metric, key, units in (
        ("latency", "latency_p50", "p50", SECONDS),
        ("latency", "latency_p90", "p90", SECONDS),
        ("latency", "latency_p99", "p99", SECONDS),
        ("memory", "peak_memory", "max_allocated", BYTES),
        ("memory", "peak_memory_reserved", "max_reserved", BYTES),
        ("energy", "energy", "gpu", JOULES),
        ("energy", "node_energy", "total", JOULES),
    ):
        part = measured.get(group)
        value = number_of(part.get(key)) if isinstance(part, dict) else None
        factor = units.get(str(part.get("unit"))) if isinstance(part, dict) else None
        if value is not None and factor is not None:
            unit = next(name for name, one in units.items() if one == 1.0)
            figures.append(PhaseFigure(metric, value * factor, unit))
    for group, metric in (("throughput", "throughput"), ("efficiency", "samples_per_wh")):
        part = measured.get(group)
        value = number_of(part.get("value")) if isinstance(part, dict) else None
        if value is None or not isinstance(part, dict):
            continue
        unit = str(part.get("unit") or "")
        if group == "efficiency":
            if not unit.endswith("/kWh"):
                continue
            value, unit = value / 1000, unit.removesuffix("/kWh") + "/Wh"
        figures.append(PhaseFigure(metric, value, unit))
    return figures


def _configuration(config: Any) -> tuple[FoundValues, Mapping[str, object]]:
    """What the configuration beside the report says, where the file holds both."""
    if not isinstance(config, dict):
        return {}, {}
    backend, scenario, environment = (_object(config.get(key)) for key in ("backend", "scenario", "environment"))
    shapes = _object(scenario.get("input_shapes"))
    gpus, dtype = environment.get("gpu"), backend.get("torch_dtype") or backend.get("dtype")
    said = {
        "workload": backend.get("model"),
        "precision": PRECISIONS.get(str(dtype), dtype),
        "batch_size": count_of(shapes.get("batch_size")),
        "device": gpus[0] if isinstance(gpus, list) and gpus else None,
        "devices": count_of(environment.get("gpu_count")) or None,
    }
    more = {"backend": backend.get("name"), "scenario": scenario.get("name"), "task": backend.get("task")}
    return {name: value for name, value in said.items() if value is not None}, more


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
