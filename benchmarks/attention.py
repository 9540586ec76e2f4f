"""Which of torch's attention kernels is the fastest here, by head size.

    python benchmarks/attention.py [--json FILE]

In bf16, forward and backward as in training, and forward alone; for the shapes of some workloads at their default
batch, and for head sizes that none of them has.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from plain import refuse
from prony_node.backends.torch.step import asked_in
from prony_node.contract.files import write_whole
from prony_node.workloads.config import ATTENTION_ORDER as ORDER

CLEARLY = 0.02  # faster than the first of ORDER by this share: a smaller lead may be chance
CALLS, ROUNDS = 5, 3

Clock = Callable[[Callable[[], object]], float]  # seconds of one call


@dataclass(frozen=True)
class AttentionShape:
    """One self-attention: batch, heads, tokens and head size."""

    query: tuple[int, int, int, int]
    causal: bool


SHAPES = {
    "gpt-800m": AttentionShape((16, 8, 2048, 256), True),
    "gpt-117m": AttentionShape((32, 12, 1024, 64), True),
    "bert-base-squad": AttentionShape((128, 12, 384, 64), False),
    "vit-l": AttentionShape((128, 16, 197, 64), False),
    "heads of 96": AttentionShape((16, 16, 2048, 96), True),
    "heads of 128": AttentionShape((16, 16, 2048, 128), True),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        return refuse("this needs a CUDA device: elsewhere torch has one kernel, and nothing to choose")
    device = torch.device("cuda", 0)
    rows = []
    for work, shape in SHAPES.items():
        for mode in ("train", "infer"):
            times = times_of(shape, device, torch.bfloat16, device_clock, training=mode == "train")
            rows.append({"work": work, "mode": mode, **document(shape, times)})
            print(row_of(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    if options.json:
        about = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
        write_whole(options.json, {**about, "kinds": rows})
    return 0


def times_of(
    shape: AttentionShape, device: torch.device, dtype: torch.dtype, clock: Clock, *, training: bool
) -> dict[str, float]:
    """Seconds of each kernel that can do this shape: forward and, in training, backward."""
    found = {}
    for name in ORDER:
        try:
            query, key, value = (
                torch.randn(shape.query, device=device, dtype=dtype, requires_grad=training) for _ in range(3)
            )

            def once(query: Tensor = query, key: Tensor = key, value: Tensor = value) -> Tensor:
                answer = F.scaled_dot_product_attention(query, key, value, is_causal=shape.causal)
                if training:
                    torch.autograd.backward(answer, answer.detach())
                return answer

            with asked_in((name,), only=True):
                found[name] = clock(once)
        except RuntimeError:  # no such kernel for this shape, or no memory for it
            continue
    return found


def device_clock(work: Callable[[], object]) -> float:
    """The best of a few rounds, by the device's own events: what else the host does is not counted."""
    work()
    best = math.inf
    for _ in range(ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(CALLS):
            work()
        ended.record()
        ended.synchronize()
        best = min(best, began.elapsed_time(ended) / 1e3 / CALLS)
    return best


def document(shape: AttentionShape, times: dict[str, float]) -> dict[str, Any]:
    """The times in milliseconds, and the kernels by them; in their usual order where none is clearly faster."""
    order = sorted(ORDER, key=lambda name: times.get(name, math.inf))
    first = times.get(ORDER[0], math.inf)
    clear = bool(times) and min(times.values()) < (1 - CLEARLY) * first
    timed = {
        "query": list(shape.query), "key": list(shape.query), "masked": False, "causal": shape.causal, "calls": 1,
        "milliseconds": {name: round(1e3 * seconds, 4) for name, seconds in times.items()},
    }  # fmt: skip
    return {"order": order if clear else list(ORDER), "timed": [timed] if times else []}


def row_of(row: dict) -> str:
    if not row["timed"]:
        return f"{row['work']}, {row['mode']}: none of {', '.join(ORDER)} can do it"
    (found,) = row["timed"]
    times = ", ".join(f"{name} {took:.3f} ms" for name, took in found["milliseconds"].items())
    return f"{row['work']}, {row['mode']} {found['query']}: {times}; {row['order'][0]} first"


if __name__ == "__main__":
    sys.exit(main())
