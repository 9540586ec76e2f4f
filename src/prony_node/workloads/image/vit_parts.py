"""Prony's own forms of parts of torchvision's ViT: the same functions of the same parameters, with less to move.

Torch's module for attention takes queries, keys and values apart into copies and answers position by position first,
which is turned back by another copy: here they stay where one product left them. A patch does not overlap the next, so
the convolution that embeds them is one matrix product. And under autocast the class token, which is fp32, makes fp32 of
the stream that every layer adds to, twice the bytes; here it is of the precision that was asked for, as in the layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PackedAttention(nn.Module):
    """In place of torch's MultiheadAttention for samples in rows, with its parameters."""

    def __init__(self, other: nn.MultiheadAttention) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias, self.out_proj = other.in_proj_weight, other.in_proj_bias, other.out_proj
        self.heads, self.dropout = other.num_heads, other.dropout

    def forward(self, x: Tensor, _keys: Tensor, _values: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """As the encoder calls it: the three are the same, and nobody looks at the weights."""
        assert not need_weights
        batch, length, width = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = packed.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind()
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(found.transpose(1, 2).reshape(batch, length, width)), None


class PatchProduct(nn.Module):
    """In place of a convolution whose kernel is its stride, with its parameters."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        assert other.kernel_size == other.stride
        self.weight, self.bias, self.side = other.weight, other.bias, other.kernel_size[0]

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        rows, columns = height // self.side, width // self.side
        cut = images.view(batch, channels, rows, self.side, columns, self.side).permute(0, 2, 4, 1, 3, 5)
        answer = F.linear(cut.reshape(batch, rows * columns, -1), self.weight.flatten(1), self.bias)
        return answer.transpose(1, 2).unflatten(2, (rows, columns))


def in_autocast_precision(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Before the first layer."""
    (x,) = given
    kind = x.device.type
    return (x.to(torch.get_autocast_dtype(kind)),) if torch.is_autocast_enabled(kind) else (x,)


def use_own_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    network.conv_proj = PatchProduct(network.conv_proj)
    for block in network.encoder.layers:
        block.self_attention = PackedAttention(block.self_attention)
    network.encoder.layers.register_forward_pre_hook(in_autocast_precision)
