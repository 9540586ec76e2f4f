"""How a language model's answers to a test split are judged."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.measure.protocol import Batch

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
