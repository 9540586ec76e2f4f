"""Memory: what a model needs at least, what was free, what was used at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import torch

from prony_node.contract.metrics import measured, missing
from prony_node.contract.settings import Value
from prony_node.measure.out_of_memory import OutOfMemory
from prony_node.measure.protocol import Task


def free_and_total(device: torch.device) -> tuple[int, int] | None:
    """Bytes free and in all: of the device, or of the host for a CPU."""
    if device.type == "cpu":
        return _host_memory()
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info(device)
        return int(free), int(total)
    return None


def _host_memory() -> tuple[int, int] | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    free, total = values.get("MemAvailable", 0), values.get("MemTotal", 0)
    limit, used = (_group_bytes(name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None and limit < total:
        return min(free, max(0, limit - used)), limit
    return free, total


def _group_bytes(name: str) -> int | None:
    """A figure of the control group that limits a container, seen from inside of it; None when there is none."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def state_bytes(parameters: int, settings: dict[str, Value]) -> int:
    """What weights, gradients and optimizer state take: less than any run of this trial needs."""
    width = 2 if settings["precision"] == "bf16-pure" else 4
    if settings["mode"] == "infer":
        return parameters * (2 if settings["precision"] in ("bf16", "fp16", "bf16-pure") else 4)
    copies = {"sgd": 3, "adam": 4, "adamw": 4}[str(settings["optimizer"])]
    return parameters * width * copies


def parameters_of(task: Task) -> int:
    """Counted on a model that takes no memory: for one whose size nobody stated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in task.model().parameters())


def refuse_hopeless(parameters: int | None, settings: dict[str, Value], device: torch.device) -> None:
    """Say at once what would otherwise take minutes, or the host's OOM killer, to find out; None: not known."""
    known = free_and_total(device)
    if parameters is None:
        return
    needed = state_bytes(parameters, settings)
    if known and needed > known[0]:
        what = "the weights" if settings["mode"] == "infer" else "weights, gradients and optimizer state"
        raise OutOfMemory(f"{what} alone need {gib(needed)}; {free_words(device)}")


def free_words(device: torch.device) -> str:
    known = free_and_total(device)
    if known is None:
        return f"how much was free on {device} is not known"
    return f"{gib(known[0])} of {gib(known[1])} were free on {device}"


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def reset_peak(device: torch.device) -> None:
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats(device)


def memory_metrics(device: torch.device) -> dict[str, dict[str, Any]]:
    peak_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    metrics = {"peak_memory_host": measured(peak_host, "B", scope="rank process", source="getrusage")}
    module = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(module, "max_memory_allocated"):
        reason = f"{device.type} has no allocator that counts; see peak_memory_host"
        return metrics | {"peak_memory": missing(reason), "peak_memory_reserved": missing(reason)}
    source = "torch's allocator, from the first step on"
    allocated, reserved = module.max_memory_allocated(device), module.max_memory_reserved(device)
    return metrics | {
        "peak_memory": measured(allocated, "B", scope="one device", source=source),
        "peak_memory_reserved": measured(reserved, "B", scope="one device", source=source),
    }
