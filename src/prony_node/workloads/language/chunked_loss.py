"""Cross entropy whose logits never exist whole: some tokens at a time, and the gradient of each part at once.

It does the same products as the loss that has all logits, and holds none of them for the backward pass. That saves
memory, not time, so it is taken where logits are too large to be worth it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LARGE_BYTES = 2**32  # of logits, from which on they come in parts
TOKENS = 4096  # of a part: enough for the matrix units, a few hundred MiB of logits


class ChunkedCrossEntropy(torch.autograd.Function):
    """The mean over tokens. Slopes are not divided by their number until the end: fp16 would lose them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, learns: bool) -> Tensor:
        matrix = weight.to(states.dtype)
        wide = torch.promote_types(states.dtype, torch.float32)  # keeps the small parts of a sum over the vocabulary
        total = torch.zeros((), device=states.device, dtype=wide)
        by_weight = torch.zeros(weight.shape if learns else (), device=weight.device)
        by_states = []
        for rows, right in zip(states.split(TOKENS), targets.split(TOKENS), strict=True):
            logits = (rows @ matrix.t()).to(wide)
            norm = logits.logsumexp(dim=1, keepdim=True)
            total = total + (norm - logits.gather(1, right[:, None])).sum()
            if learns:
                is_right = torch.arange(len(weight), device=right.device) == right[:, None]
                slopes = ((logits - norm).exp() - is_right.to(wide)).to(states.dtype)
                by_states.append(slopes @ matrix)
                by_weight = by_weight + slopes.t() @ rows
        if learns:
            ctx.save_for_backward(torch.cat(by_states), by_weight)
            ctx.weight_kind = weight.dtype
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_states, by_weight = ctx.saved_tensors
        share = gradients[0] / len(by_states)
        by_weight = (by_weight * share).to(ctx.weight_kind)
        return (by_states.to(share.dtype) * share).to(by_states.dtype), by_weight, None, None


def is_large(states: Tensor, weight: Tensor) -> bool:
    """Whether the logits would be, two bytes each."""
    return 2 * states[..., 0].numel() * len(weight) > LARGE_BYTES


def chunked_loss(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Of hidden states before the last layer, which has this weight, in the precision of its product."""
    kind = states.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        states = states.to(torch.get_autocast_dtype(kind))
    loss: Tensor = ChunkedCrossEntropy.apply(states.flatten(0, 1), weight, targets.flatten(), torch.is_grad_enabled())
    return loss
