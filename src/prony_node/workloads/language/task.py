"""What language models share: how answers are judged, and attention without a mask for transformers' models.

Compiled or captured, transformers cannot see that a mask hides only the future, and passes a full one to torch, which
then does not use its fused kernels. Under a name of its own the attention gets no mask: right for samples without
padding, in which each token sees every token, or every earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch

LONGEST_ANSWER = 30  # tokens, as BERT's authors read an answer


def token_scores(logits_of: Callable[[nn.Module, Tensor], Tensor], model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The mean cross entropy of a token, in nats, for each sequence."""
    tokens, targets = batch
    logits = logits_of(model, tokens).flatten(0, 1).float()
    return {"loss": F.cross_entropy(logits, targets.flatten(), reduction="none").view(len(tokens), -1).mean(1)}


def best_spans(starts: Tensor, ends: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest answer of each row: it ends where it starts or later, soon, and inside what is allowed."""
    length = starts.shape[1]
    hidden = torch.finfo(torch.float32).min / 4
    first = starts.float().masked_fill(~allowed, hidden)
    last = ends.float().masked_fill(~allowed, hidden)
    both = first[:, :, None] + last[:, None, :]
    possible = torch.ones(length, length, dtype=torch.bool, device=starts.device).triu().tril(LONGEST_ANSWER - 1)
    place = both.masked_fill(~possible, 2 * hidden).flatten(1).argmax(1)
    return place // length, place % length


NAME = "sdpa_without_mask"


def attention_without_mask() -> str:
    """The name of that attention, known to transformers from here on."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NAME, sdpa_attention_forward)
    return NAME


def recompute_layers(model: Any) -> None:
    """Recompute activations in the backward pass, layer by layer."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
