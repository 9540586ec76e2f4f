"""The decoder: boxes are refined layer by layer, and the losses of two layers see each change (look forward twice)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prony_node.workloads.dino.attention import DeformableAttention, portable_kernels
from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.encoder import FeedForward
from prony_node.workloads.dino.heads import Heads, Perceptron
from prony_node.workloads.dino.positions import Levels, box_embeddings


@dataclass(frozen=True)
class Predicted:
    """What every layer answers, the last being the model's answer."""

    class_logits: Tensor  # layers, batch, queries, classes
    boxes: Tensor  # layers, batch, queries, 4: logits

    def part(self, first: int, end: int | None = None) -> Predicted:
        """Of these queries."""
        return Predicted(self.class_logits[:, :, first:end], self.boxes[:, :, first:end])


class DecoderLayer(nn.Module):
    """Queries see each other, then the image, then themselves."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(size.hidden, size.heads, batch_first=True)
        nn.init.xavier_uniform_(self.self_attention.out_proj.weight)
        self.self_norm = nn.LayerNorm(size.hidden)
        self.cross_attention = DeformableAttention(size)
        self.cross_norm = nn.LayerNorm(size.hidden)
        self.feed_forward = FeedForward(size.hidden, size.feed_forward)

    def forward(
        self, content: Tensor, position: Tensor, tokens: Tensor, boxes: Tensor, levels: Levels, hidden: Tensor | None
    ) -> Tensor:
        placed = content + position
        with portable_kernels():
            seen, _ = self.self_attention(placed, placed, content, attn_mask=hidden, need_weights=False)
        content = self.self_norm(content + seen)
        seen = self.cross_attention(content + position, tokens, on_levels(boxes, levels), levels)
        return self.feed_forward(self.cross_norm(content + seen))


def on_levels(boxes: Tensor, levels: Levels) -> Tensor:
    """Shares of the image to shares of each padded level: batch, queries, levels, 4."""
    return boxes[:, :, None] * levels.ratios.repeat(1, 1, 2)[:, None]


class Decoder(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.decoder_layers))
        self.position = Perceptron(2 * size.hidden, size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.heads = Heads(size)

    def forward(
        self, content: Tensor, references: Tensor, tokens: Tensor, levels: Levels, hidden: Tensor | None = None
    ) -> Predicted:
        """References: the boxes that queries start from, in logits."""
        logits, boxes = [], []
        refined = references
        for layer in self.layers:
            references = refined.detach()
            where = references.sigmoid()
            position = self.position(box_embeddings(where, content.shape[-1]).to(content.dtype))
            content = layer(content, position, tokens, where, levels, hidden)
            answer = self.norm(content)
            change = self.heads.box_change(answer)
            logits.append(self.heads.class_logits(answer))
            boxes.append(refined + change)  # the loss of this layer sees the change of the layer before, too
            refined = references + change
        return Predicted(torch.stack(logits), torch.stack(boxes))
