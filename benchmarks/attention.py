"""Which of torch's attention kernels is the fastest here, by head size: what `attention=measured` would choose.

    python benchmarks/attention.py [--json FILE]

In bf16, forward and backward as in training, and forward alone; for the shapes of some workloads at their default
batch, and for head sizes that none of them has.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from plain import refuse
from prony_node.contract.files import write_whole
from prony_node.measure.attention import ORDER, AttentionShape, choose, device_clock, time_on


def kind(batch: int, heads: int, tokens: int, width: int, causal: bool) -> AttentionShape:
    shape = (batch, heads, tokens, width)
    return AttentionShape(shape, shape, shape, None, causal)


KINDS = {
    "gpt-800m": kind(16, 8, 2048, 256, True),
    "gpt-117m": kind(32, 12, 1024, 64, True),
    "bert-base-squad": kind(128, 12, 384, 64, False),
    "vit-l": kind(128, 16, 197, 64, False),
    "heads of 96": kind(16, 16, 2048, 96, True),
    "heads of 128": kind(16, 16, 2048, 128, True),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        return refuse("this needs a CUDA device: elsewhere torch has one kernel, and nothing to choose")
    device = torch.device("cuda", 0)
    rows = []
    for name, shape in KINDS.items():
        for mode in ("train", "infer"):
            clock = time_on(device, torch.bfloat16, device_clock, training=mode == "train")
            found = choose(Counter({shape: 1}), clock).document()
            rows.append({"work": name, "mode": mode, **found})
            print(row_of(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    if options.json:
        about = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
        write_whole(options.json, {**about, "kinds": rows})
    return 0


def row_of(row: dict) -> str:
    if not row["timed"]:
        return f"{row['work']}, {row['mode']}: none of {', '.join(ORDER)} can do it"
    (found,) = row["timed"]
    times = ", ".join(f"{name} {took:.3f} ms" for name, took in found["milliseconds"].items())
    return f"{row['work']}, {row['mode']} {found['query']}: {times}; {row['order'][0]} first"


if __name__ == "__main__":
    sys.exit(main())
