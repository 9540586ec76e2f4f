"""What torch can do on a device: found by trying it on something small, not by a table of models."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ATTENTION_KERNELS = {
    "flash": "FLASH_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


def ability(can: bool | None, reason: str | None = None) -> dict[str, Any]:
    return {"can": can, "reason": reason}


def compile_ability(kind: str) -> dict[str, Any]:
    """Whether torch.compile finds what it needs; it is not started, that takes a minute."""
    compiler = find_compiler(kind)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    needs_triton = kind != "cpu"
    if compiler is None:
        wanted = "C++ compiler (g++, clang++, or CXX)" if kind == "cpu" else "C compiler (gcc, clang, or CC)"
        return ability(False, f"no {wanted} on PATH")
    if not headers.exists():
        return ability(False, "Python's headers are not installed (Python.h), which compiled code includes")
    if needs_triton and importlib.util.find_spec("triton") is None:
        return ability(False, "triton is not installed")
    return ability(True, f"found {compiler}" + (" and triton" if needs_triton else "") + "; not tried")


def find_compiler(kind: str) -> str | None:
    """The compiler that generated code is built with: C++ for the CPU's kernels, C for triton's launchers."""
    cpp = (os.environ.get("CXX"), "g++", "clang++", "c++")
    for name in cpp if kind == "cpu" else (os.environ.get("CC"), "gcc", "clang", "cc"):
        if name and shutil.which(name):
            return Path(name).name
    return None


def distributed_backends() -> list[str]:
    import torch.distributed as distributed

    if not distributed.is_available():
        return []
    backends = ("gloo", "nccl", "mpi", "ucc", "xccl")
    return [name for name in backends if getattr(distributed, f"is_{name}_available", bool)()]


def device_abilities(device: str) -> dict[str, Any]:
    """Each ability of a device, tried; needs torch."""
    import torch

    kind = device.partition(":")[0]
    attention = {name: _try(partial(_attend, device, word)) for name, word in ATTENTION_KERNELS.items()}
    if kind == "cpu":
        timing, graphs = (
            ability(False, "a CPU is timed by the host's clock"),
            ability(False, "a CPU has no graphs"),
        )
    else:
        timing, graphs = _try(partial(_time, device)), _try(partial(_capture, device))
    return {
        "bf16": _try(partial(_multiply, device, torch.bfloat16)),
        "fp16": _try(partial(_multiply, device, torch.float16)),
        "attention": attention,
        "event_timing": timing,
        "graphs": graphs,
        "compile": compile_ability(kind),
    }


def _try(attempt: Callable[[], str | None]) -> dict[str, Any]:
    """An ability by attempt: no answer is good, a sentence or an exception is the reason why not."""
    try:
        reason = attempt()
    except Exception as error:  # whatever torch raises is the answer
        lines = str(error).strip().splitlines()
        first = lines[0] if lines else type(error).__name__
        if first.startswith("No viable backend") or first.startswith("No available kernel"):
            first = "torch has no such kernel for this device"
        return ability(False, first[:200])
    return ability(reason is None, reason)


def _multiply(device: str, dtype: Any) -> str | None:
    import torch

    ones = torch.ones(16, 16, dtype=dtype, device=device)
    return None if float((ones @ ones)[0, 0]) == 16 else "a small matrix product came out wrong"


def _attend(device: str, kernel: str) -> str | None:
    import warnings

    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kernel == "CUDNN_ATTENTION" and not device.startswith("cuda"):
        return "cuDNN is NVIDIA's"
    backend = getattr(SDPBackend, kernel, None)
    if backend is None:
        return "this torch does not know it"
    dtype = torch.float32 if device.startswith(("cpu", "mps")) else torch.bfloat16
    query = torch.ones(1, 2, 64, 64, dtype=dtype, device=device)
    with warnings.catch_warnings(), sdpa_kernel(backend):
        warnings.simplefilter("ignore")  # torch warns of each reason, the exception is enough
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    return None if bool(torch.isfinite(result).all()) else "its result is not finite"


def _time(device: str) -> str | None:
    import torch

    module = torch.get_device_module(device.partition(":")[0])
    with module.device(device) if hasattr(module, "device") else contextlib.nullcontext():
        start, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        start.record()
        torch.ones(1024, device=device).sum()
        end.record()
        end.synchronize()
        elapsed_ms = start.elapsed_time(end)
    return None if elapsed_ms >= 0 else "the time between two events came out negative"


def _capture(device: str) -> str | None:
    """Capture one operation as a graph and replay it."""
    import torch

    module = torch.get_device_module(device.partition(":")[0])
    make = next((getattr(module, name) for name in ("CUDAGraph", "XPUGraph") if hasattr(module, name)), None)
    capture = getattr(module, "graph", None)
    if make is None or capture is None:
        return "torch offers no graphs on this kind of device"
    with module.device(device):
        total = torch.zeros(1, device=device)
        module.synchronize()
        graph = make()
        with capture(graph):
            total += 1
        graph.replay()
        module.synchronize()
    return None if float(total) == 1 else "a replayed graph did not do its work"
