"""What of a run's kernels is chosen by measuring, before its first step."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from prony_node.measure.attention import Noting, choose, device_clock, time_on

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


def noting(run: Run) -> Noting | nullcontext[None]:
    """Around a forward pass: what it asks attention for, where kernels are to be timed."""
    return Noting() if run.settings.get("attention") == "measured" else nullcontext()


def choose_attention(run: Run, seen: Noting | None) -> None:
    """Time the attention kernels on what the model was seen to ask for, with the batch that the step will have."""
    if seen is None or not seen.kinds:
        return
    factor = int(run.settings["batch_size"]) / len(run.held_out[0])
    kinds = Counter({kind.with_batch(factor): calls for kind, calls in seen.kinds.items()})
    clock = time_on(run.device, run.step.compute_dtype, device_clock, training=run.step.training)
    run.step.attention = choose(kinds, clock)
    torch.cuda.empty_cache()  # what was held to time them is the run's again
    run.found["attention"] = run.step.attention.document()
