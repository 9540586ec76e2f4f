"""Multi-scale deformable attention: transformers' module in its plain torch form, with the sampling kept in fp32."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.positions import Levels


def portable_kernels() -> AbstractContextManager[Any]:
    """Around attention with a mask: cuDNN's, which Prony prefers elsewhere, is made for sequences without one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class FullPrecision(nn.Module):
    """The sampling in fp32, whatever the precision of the layers around it.

    A place between two pixels needs more digits than 16 bits have: in its right half a level of 160 columns has 80
    of them, and bf16 has 128 numbers there. Values follow, since torch samples at the precision of the places.
    """

    def __init__(self, sampling: nn.Module) -> None:
        super().__init__()
        self.sampling = sampling

    def forward(self, value: Tensor, *geometry: Any) -> Tensor:
        shapes, shape_list, starts, places, weights, piece = geometry
        found: Tensor = self.sampling(value.float(), shapes, shape_list, starts, places.float(), weights.float(), piece)
        return found.to(value.dtype)


class DeformableAttention(nn.Module):
    """Each query looks at a few places of every level, around a point or inside a box that it refers to."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers import DeformableDetrConfig
        from transformers.models.deformable_detr.modeling_deformable_detr import (
            DeformableDetrMultiscaleDeformableAttention,
        )

        config = DeformableDetrConfig(d_model=size.hidden, num_feature_levels=size.levels)
        self.module = DeformableDetrMultiscaleDeformableAttention(config, size.heads, size.points)
        self.module.attn = FullPrecision(self.module.attn)
        self._start(size)

    def _start(self, size: Size) -> None:
        """As in Deformable DETR: each head looks in a direction of its own, its points at growing distances."""
        nn.init.zeros_(self.module.sampling_offsets.weight)
        angles = torch.arange(size.heads) * (2 * math.pi / size.heads)
        directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
        directions = directions / directions.abs().amax(-1, keepdim=True)
        steps = torch.arange(1, size.points + 1)
        offsets = directions[:, None, None] * steps[None, None, :, None]
        with torch.no_grad():
            self.module.sampling_offsets.bias.copy_(offsets.expand(-1, size.levels, -1, -1).flatten())
        nn.init.zeros_(self.module.attention_weights.weight)
        nn.init.zeros_(self.module.attention_weights.bias)
        for projection in (self.module.value_proj, self.module.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, query: Tensor, tokens: Tensor, references: Tensor, levels: Levels) -> Tensor:
        """References: batch, queries, levels, 2 (points) or 4 (boxes), as shares of the padded level, in fp32."""
        found, _ = self.module(
            query,
            attention_mask=levels.valid,
            encoder_hidden_states=tokens,
            reference_points=references,
            spatial_shapes=levels.height_width,
            spatial_shapes_list=levels.shapes,
            level_start_index=levels.starts,
        )
        return found
