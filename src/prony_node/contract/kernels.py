"""Which implementation of a layer runs: the names that the setting `kernels` holds, and the settings it replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DEFAULT, LIBRARY = "default", "library"
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
# The settings of Prony before the record's version 3, each with its values as names of kernels: "" is the library's.
FORMER: dict[str, dict[str, str]] = {
    "assignment": {"batched": "batched-assignment", "library": ""},
    "attention": {
        "cudnn": "cudnn-attention", "flash": "flash-attention", "efficient": "efficient-attention",
        "math": "math-attention", "library": "",
    },
    "blocks": {"fused": "fused-blocks", "library": ""},
    "depthwise": {"compiled": "compiled-depthwise", "library": ""},
    "enlarge": {"products": "matmul-upsampling", "library": ""},
    "norms": {"compiled": "compiled-norms", "library": ""},
    "parts": {"own": "low-precision-residual", "library": ""},
    "pooling": {"masked": "masked-roi-align", "library": ""},
    "sampling": {"kernel": "triton-deformable-attention", "library": ""},
    "stem": {"folded": "folded-stem", "library": ""},
    "suppression": {"kernel": "triton-nms", "library": ""},
}  # fmt: skip


def kernel_names(value: object) -> tuple[str, ...]:
    """The kernels that a value of the setting turns on by name."""
    return () if value in (None, DEFAULT, LIBRARY) else tuple(str(value).split(","))


def uses_kernel(settings: Mapping[str, Any], name: str) -> bool:
    """Whether a run with these effective settings has this kernel."""
    return name in kernel_names(settings.get("kernels"))


def join_kernels(names: Iterable[str]) -> str:
    """The names as the setting's value: sorted, each once; `library` where there is none."""
    return ",".join(sorted(set(names))) or LIBRARY


def former_setting(name: str, value: object = None) -> str | None:
    """What a setting of an older Prony is called now, in a sentence; None where it never was one."""
    values = FORMER.get(name)
    if values is None:
        return None
    own = ", ".join(kernel for kernel in values.values() if kernel)
    if value is None or str(value) not in values:
        return f"{name} is now a part of kernels: kernels={own.replace(', ', ' or kernels=')}, or kernels=library"
    if kernel := values[str(value)]:
        return f"{name}={value} is now kernels={kernel}"
    return f"{name}={value} is now kernels=library, or a list of kernels without {own.replace(', ', ' or ')}"
