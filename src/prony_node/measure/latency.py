"""Latency of inference: one batch at a time, from submission to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from prony_node.contract.metrics import measured
from prony_node.measure.protocol import Batch
from prony_node.stats import percentile

REQUESTS = 500
LEAST = 20
SECONDS = 3.0


def latency_metrics(
    step: Callable[[Batch], None], batches: Iterator[Batch], synchronise: Callable[[], None]
) -> tuple[dict[str, Any], int]:
    """Percentiles over requests that wait for nobody; a loader's time is not part of them."""
    taken_s: list[float] = []
    began = time.perf_counter()
    while len(taken_s) < REQUESTS and (len(taken_s) < LEAST or time.perf_counter() - began < SECONDS):
        batch = next(batches)
        synchronise()
        started = time.perf_counter()
        step(batch)
        synchronise()
        taken_s.append(time.perf_counter() - started)
    source = f"host clock, {len(taken_s)} batches, one at a time"
    names = {"latency_p50": 50, "latency_p90": 90, "latency_p99": 99}
    return {
        name: measured(percentile(taken_s, q), "s", scope="one batch", source=source) for name, q in names.items()
    }, len(taken_s)
