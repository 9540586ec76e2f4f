"""batch_size=auto: the largest batch that fits, found from small ones and then tried."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value
from prony_node.measure import cuda, memory
from prony_node.measure.out_of_memory import OutOfMemory, is_out_of_memory
from prony_node.measure.protocol import Batch, Task
from prony_node.measure.step import Step

SHARE = 0.94  # of the free memory: compiled code comes on top of what is probed
SHARE_WITH_GRAPHS = 0.86  # a graph's own pool cannot reuse what lies cached beside it, nor give anything back
BATCHES_HELD = 5  # the fewest that lie on the device, and the graph's own inputs
ATTEMPTS = 8


def largest_batch(task: Task, settings: dict[str, Value], device: torch.device, note: Callable[[str], None]) -> int:
    """Two small batches tell what a sample costs; the batch that this predicts is tried, and mended."""
    if device.type == "cpu":
        raise RequestError("batch_size=auto looks for what fits a device's own memory; this machine has only a CPU")
    known = memory.free_and_total(device)
    if known is None:
        raise RequestError(f"batch_size=auto needs to know the memory of {device}, which torch does not tell")
    room = known[0] * (SHARE_WITH_GRAPHS if settings.get("graphs") else SHARE)
    small, large = 8, 32
    first, second = _peak(task, settings, device, small), _peak(task, settings, device, large)
    if first is None or second is None:
        small = 1 if settings.get("mode") == "infer" else task.least_batch
        large = 2 * small
        first, second = _peak(task, settings, device, small), _peak(task, settings, device, large)
    if first is None:
        fewest = "one sample fits" if small == 1 else f"{small} samples fit"
        raise OutOfMemory(f"not even {fewest} in the {memory.gib(known[0])} free on {device}")
    if second is None:
        return small
    cost = max((second - first) / (large - small), 1.0)
    batch = _round(small + (room - first) / cost)
    for _ in range(ATTEMPTS):
        note(f"trying batch_size={batch}")
        peak = _peak(task, settings, device, batch)
        if batch <= small or (peak is not None and peak <= room):
            return max(small, batch)
        batch = min(batch - 1, _round(batch * 0.95))
    return max(small, batch)


def _round(batch: float) -> int:
    """Down to a multiple that suits matrix units, where that costs less than 5 % of the batch."""
    whole = max(1, int(batch))
    multiple = 8 if whole >= 160 else 4 if whole >= 64 else 1
    return whole - whole % multiple


def _peak(task: Task, settings: dict[str, Value], device: torch.device, batch: int) -> int | None:
    """Most memory that a few eager steps of this batch take beside the batches held; None when it does not fit."""
    probe = {**settings, "batch_size": batch, "compile": "off", "graphs": False}
    samples = batch * int(settings.get("grad_accumulation", 1))
    module = torch.get_device_module(device)
    step: Step | None = None
    held: list[Batch] = []
    try:
        memory.reset_peak(device)
        step = Step(task, probe, device)
        step.finish_model()
        generator = torch.Generator(device).manual_seed(0)
        held = [step.place(task.sample(generator, samples)) for _ in range(BATCHES_HELD)]
        with cuda.untuned():
            step.prepare(held[0])
            torch.accelerator.synchronize()
        return int(module.max_memory_allocated(device))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        step, held = None, []  # before the cache is emptied
        gc.collect()
        module.empty_cache()
