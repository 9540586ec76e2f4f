"""Where compiled kernels are kept, and whether they were there already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch

from prony_node.contract.cache import cache_folder
from prony_node.contract.settings import Value
from prony_node.measure.winners import remember_winners


def use_cache(settings: dict[str, Value], folder: Path) -> None:
    """Point the compiler at an empty cache inside the run folder, or at the one that runs share."""
    if settings["compile"] == "off":
        return
    # Else a graph with an autograd function of ours is traced anew in every process. Older versions have no switch.
    if hasattr(functorch, "autograd_cache_allow_custom_autograd_functions"):
        functorch.autograd_cache_allow_custom_autograd_functions = True
    if torch.cuda.is_available():  # of AMD too; a CPU has one form of each kernel
        remember_winners()
    if settings["compile_cache"] == "cold":
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compile_cache")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "compile_cache" / "triton")
    elif "TORCHINDUCTOR_CACHE_DIR" not in os.environ and (cache := cache_folder()) is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "compile")  # else torch's own, which ends with the machine


def cache_state(settings: dict[str, Value]) -> dict[str, Any]:
    """What the compiler found in its cache during cold start."""
    if settings["compile"] == "off":
        return {"state": "none", "hits": 0, "misses": 0}
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    hits = inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"]
    misses = inductor["fxgraph_cache_miss"] + autograd["autograd_cache_miss"]
    if hits + misses == 0:
        return {"state": "unknown", "hits": 0, "misses": 0}
    state = "warm" if misses == 0 else "cold" if hits == 0 else "partly warm"
    return {"state": state, "hits": hits, "misses": misses}
