"""What the heads see of each region, from its level of the pyramid: torchvision's way, or all levels for all regions.

Torchvision sorts the regions by level, which the host must be told once a level. To pool every region from every
level, most of them from a place outside of it where there is nothing but zeros, costs the device little and the host
no wait.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

OUTSIDE = -1e4  # pixels: left of every image and above it, at every scale

Sizes = list[tuple[int, int]]  # height and width of each image


def pooled_by_library(pooler: Any, features: dict[str, Tensor], regions: Tensor, sizes: Sizes) -> Tensor:
    """Regions of all images, channels, height, width. `regions` are images, number, 4."""
    answer: Tensor = pooler(features, list(regions), sizes)
    return answer


def pooled_from_all(pooler: Any, features: dict[str, Tensor], regions: Tensor, sizes: Sizes) -> Tensor:
    """The same, by torchvision's own rule which level is a region's."""
    from torchvision.ops import roi_align

    if pooler.scales is None:
        pooler(features, [boxes[:1] for boxes in regions], sizes)  # it finds out the scales when it is first asked
    levels = torch.arange(len(pooler.scales), device=regions.device)
    is_other = pooler.map_levels(list(regions)) != levels[:, None]
    placed = regions.flatten(0, 1).expand(len(levels), -1, -1).masked_fill(is_other[..., None], OUTSIDE)
    images = torch.arange(len(regions), device=regions.device, dtype=regions.dtype)
    images = images.repeat_interleave(regions.shape[1], output_size=regions.shape[:2].numel())
    rows = torch.cat((images.expand(len(levels), -1)[..., None], placed), dim=-1)
    parts = [
        roi_align(features[name], own, pooler.output_size, scale, pooler.sampling_ratio)
        for name, own, scale in zip(pooler.featmap_names, rows, pooler.scales, strict=True)
    ]
    return reduce(torch.add, parts)  # torch.sum would leave the precision of the features
