"""Synthetic questions on synthetic texts: an answer is a span of the text, its ends told by their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from prony_node.data.synthetic import Sampler

BEGIN, SEPARATE = 1, 2
OPENS, CLOSES = (3, 4, 5, 6), (7, 8, 9, 10)  # tokens that an answer starts and ends with, and no other text holds
FIRST_WORD = 11
LONGEST_SHARE = 16  # an answer is at most a 16th of the sequence long


def span_sampler(vocabulary: int, sequence: int) -> Sampler:
    """Tokens, segments, start and end: BEGIN question SEPARATE text SEPARATE, without padding."""
    question = max(2, sequence // 8)
    text_from, text_to = question + 2, sequence - 1
    longest = max(2, min(sequence // LONGEST_SHARE, (text_to - text_from) // 2))

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device

        def chance(most: int, *shape: int) -> Tensor:
            return torch.randint(most, shape, generator=generator, device=device)

        tokens = FIRST_WORD + chance(vocabulary - FIRST_WORD, batch_size, sequence)
        tokens[:, 0] = BEGIN
        tokens[:, question + 1] = tokens[:, -1] = SEPARATE
        starts = text_from + chance(text_to - text_from - longest, batch_size)
        ends = starts + 1 + chance(longest - 1, batch_size)
        rows = torch.arange(batch_size, device=device)
        tokens[rows, starts] = OPENS[0] + chance(len(OPENS), batch_size)
        tokens[rows, ends] = CLOSES[0] + chance(len(CLOSES), batch_size)
        segments = (torch.arange(sequence, device=device) > question + 1).long().expand(batch_size, -1).contiguous()
        return tokens, segments, starts, ends

    return sample
