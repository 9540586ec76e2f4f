"""What a change of settings does to the mathematics of a step: a faster trial must not trade it silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prony.analysis.settings import show_setting

# What each precision gives up against fp32, in words.
PRECISIONS = {
    "default": "convolutions rounded to 10 bits, other products in single precision",
    "fp32": "single precision throughout",
    "tf32": "products rounded to 10 bits",
    "bf16": "products in 8 bits of precision, weights in fp32",
    "bf16-pure": "no fp32 at all: small updates of weights are lost",
    "fp16": "products in 11 bits with a small range, losses scaled, weights in fp32",
    "fp8": "linear layers in 8-bit numbers",
}
# These change how a step is computed, never what: kernels, layouts, loaders.
SAME_MATHEMATICS = {
    "compile", "compile_cache", "graphs", "memory_format", "fused", "workers", "prefetch", "pin_memory", "cores",
    "recompute", "attention", "norms", "parts", "stem", "blocks", "enlarge", "depthwise", "assignment", "suppression",
    "pooling", "sampling", "decode", "cache", "stage", "data_format", "device", "memory_cap", "preset",
}  # fmt: skip
SIZES = ("batch_size", "grad_accumulation")


def mathematics_sentences(start: Mapping[str, Any], winner: Mapping[str, Any], mode: str) -> list[str]:
    """A sentence for each setting by which the winner computes something else than the start."""
    said = []
    for name in sorted(winner):
        before, after = start.get(name), winner[name]
        if before == after or name in SAME_MATHEMATICS or (name in SIZES and mode == "infer"):
            continue
        change = f"{name}={show_setting(after)} instead of {show_setting(before)}"
        if name == "precision":
            said.append(f"It changes the mathematics: {change} ({PRECISIONS.get(str(after), 'another precision')}).")
        elif name in SIZES:
            said.append(
                f"It changes how a model learns: {change}; --goal time-to-quality judges that, a rate does not."
            )
        else:
            said.append(f"It changes the mathematics: {change}.")
    return said
