"""The encoder: tokens of all levels attend to a few places of every level, six times over."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prony_node.workloads.dino.attention import DeformableAttention
from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.heads import linear
from prony_node.workloads.dino.positions import Levels, centres, place_embeddings


class FeedForward(nn.Module):
    """Two linear layers beside a shortcut, and a norm."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = linear(hidden, inner), linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = DeformableAttention(size)
        self.norm = nn.LayerNorm(size.hidden)
        self.feed_forward = FeedForward(size.hidden, size.feed_forward)

    def forward(self, tokens: Tensor, places: Tensor, references: Tensor, levels: Levels) -> Tensor:
        attended = self.attention(tokens + places, tokens, references, levels)
        return self.feed_forward(self.norm(tokens + attended))


class Encoder(nn.Module):
    """Four maps to tokens that have seen each other."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.encoder_layers))
        self.level_embedding = nn.Parameter(torch.empty(size.levels, size.hidden))
        nn.init.normal_(self.level_embedding)
        self.recompute = False

    def forward(self, maps: list[Tensor], levels: Levels) -> Tensor:
        tokens = torch.cat([found.flatten(2).transpose(1, 2) for found in maps], dim=1)
        places = place_embeddings(levels, tokens.shape[-1]).to(tokens.dtype) + self._of_level(levels)
        references = encoder_references(levels)
        for layer in self.layers:
            if self.recompute:
                tokens = checkpoint(layer, tokens, places, references, levels, use_reentrant=False)
            else:
                tokens = layer(tokens, places, references, levels)
        return tokens

    def _of_level(self, levels: Levels) -> Tensor:
        """Tokens, hidden: the same for all tokens of a level, so that the level can be told."""
        counts = [height * width for height, width in levels.shapes]
        rows = zip(self.level_embedding, counts, strict=True)
        return torch.cat([row.expand(count, -1) for row, count in rows])


def encoder_references(levels: Levels) -> Tensor:
    """Batch, tokens, levels, 2: each token's own place, on every level, as a share of the padded level."""
    return centres(levels)[:, :, None] * levels.ratios[:, None]
