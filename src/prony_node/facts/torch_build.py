"""The torch a rank has imported: its build, its libraries, and the switches that change its kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from prony_node.facts.tree import Missing


def torch_facts(missing: Missing) -> dict[str, Any]:
    """What torch says of itself. The caller has imported torch already, or is about to."""
    import torch

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # a build without that part answers in many ways
            missing.add(f"torch.{name}", f"this build does not say ({type(error).__name__}: {error})")
            return None

    version = torch.version
    config = ask("config", torch.__config__.show) or ""
    return {
        "version": str(torch.__version__),
        "git": getattr(version, "git_version", None),
        "debug": bool(getattr(version, "debug", False)),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
        "xpu": getattr(version, "xpu", None),
        "cudnn": ask("cudnn", torch.backends.cudnn.version),
        "nccl": nccl_version() if getattr(version, "cuda", None) or getattr(version, "hip", None) else None,
        "blas": _setting(config, "BLAS_INFO"),
        "compiler": _line(config, r"- ((?:GCC|clang|MSVC)[^\n]*)"),
        "mkl": _line(config, r"- (?:Intel\(R\) )?oneAPI Math Kernel Library Version ([0-9.-]+)"),
        "onednn": _line(config, r"- Intel\(R\) MKL-DNN v([0-9.]+)"),
        "cpu_capability": ask("cpu_capability", torch.backends.cpu.get_cpu_capability),
        "threads": ask("threads", torch.get_num_threads),
        "interop_threads": ask("interop_threads", torch.get_num_interop_threads),
        "switches": ask("switches", switches),
    }


def switches() -> dict[str, Any]:
    """As they stand now: a workload may set them, so ask after it was built."""
    import torch

    cudnn = torch.backends.cudnn
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": bool(cudnn.allow_tf32),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "deterministic_algorithms": bool(torch.are_deterministic_algorithms_enabled()),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def nccl_version() -> str | None:
    """NCCL's version (RCCL's on ROCm) where torch was built with it."""
    import torch

    try:
        version = torch.get_device_module("cuda").nccl.version()
    except Exception:  # a build without it
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _setting(config: str, name: str) -> str | None:
    return _line(config, rf"\b{name}=([^,\s]+)")


def _line(config: str, pattern: str) -> str | None:
    match = re.search(pattern, config)
    return match[1].strip() if match else None
