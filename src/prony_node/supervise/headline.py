"""The metrics of a run's headline: rates with their interval, FLOPs and utilisation."""

from __future__ import annotations

import re
from typing import Any

import torch

from prony_node.contract.metrics import measured, missing
from prony_node.contract.plan import Peak
from prony_node.contract.settings import Value
from prony_node.measure.device import device_name
from prony_node.measure.flops import Flops
from prony_node.measure.loop import Window
from prony_node.stats import Estimate


def rate_metrics(
    window: Window, estimate: Estimate | None, units_per_step: int, unit: str, from_host: bool, ranks: int = 1
) -> dict[str, Any]:
    """Of ranks in lockstep, whose steps are one: `units_per_step` is what all of them do in it."""
    source = f"counted {unit} over {window.clock}"
    bounds: dict[str, Any]
    steps: dict[str, Any]
    if estimate is not None:
        step_s = estimate.step_time_s
        low_s, high_s = estimate.step_time_low_s, estimate.step_time_high_s
        bounds = {"low": units_per_step / high_s, "high": units_per_step / low_s if low_s > 0 else None}
        more: dict[str, Any] = {"interval": "95 %, within one run"}
        steps = {"low": low_s, "high": high_s}
    else:
        step_s = window.duration_s / window.steps
        bounds, steps = {}, {}
        more = {"interval": "none: too few steps"}
    rate = units_per_step / step_s
    each = {name: None if bound is None else bound / ranks for name, bound in bounds.items()}
    return {
        "throughput": measured(rate, f"{unit}/s", scope="all devices", source=source, **bounds, **more),
        "throughput_per_device": measured(rate / ranks, f"{unit}/s", scope="one device", source=source, **each, **more),
        "step_time": measured(step_s, "s", scope="one device", source=window.clock, **steps, **more),
        "data_wait_share": _wait_share(window, estimate) if from_host else missing(
            "batches lie in device memory, nothing is waited for"
        ),
    }  # fmt: skip


def _wait_share(window: Window, estimate: Estimate | None) -> dict[str, Any]:
    first, last = (estimate.cut_steps, estimate.cut_steps + estimate.steps) if estimate else (0, window.steps)
    seen = 0
    waited_s = total_s = 0.0
    for block in window.blocks:
        seen += block.steps
        if first < seen <= last:
            waited_s += block.data_wait_s
            total_s += block.duration_s
    return measured(waited_s / total_s, "1", scope="one device", source=f"gaps between steps by {window.clock}")


def uncounted(reason: str) -> dict[str, Any]:
    return {"flops_per_sample": missing(reason), "mfu": missing(reason)}


def utilisation_metrics(
    flops: Flops, achieved: float, peaks: tuple[Peak, ...], device: torch.device, settings: dict[str, Value]
) -> dict[str, Any]:
    """FLOPs as counted, and their rate over the peak that the plan carries for this device."""
    if flops.per_sample == 0:
        return uncounted("it moves data and has no matrix product, the only work that is counted")
    counted: dict[str, Any] = {
        "scope": "one sample",
        "source": f"counted on the meta device; {flops.convention}",
    }
    metrics = {"flops_per_sample": measured(flops.per_sample, "FLOP", **counted)}
    if settings.get("recompute"):
        metrics["recomputed_flops_per_sample"] = measured(flops.recomputed, "FLOP", **counted)
    name, precision = device_name(device), str(settings["precision"])
    peak = next((peak for peak in peaks if peak.precision == precision and re.search(peak.device, name)), None)
    if peak is None:
        return metrics | {"mfu": missing(f"no peak is known for {name} in {precision}")}
    source = f"{achieved / 1e12:.4g} TFLOP/s over the dense {precision} peak of {peak.flops / 1e12:.4g}: {peak.source}"
    return metrics | {"mfu": measured(achieved / peak.flops, "1", scope="one device", source=source)}
