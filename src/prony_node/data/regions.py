"""Synthetic scenes: regions with wavy borders, each in the colour of its class under noise, and their masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.data.synthetic import STRUCTURE_SEED, Sampler

IGNORED = 255
CELLS = 6  # on the shorter side: an image has some forty regions
WAVES = 4  # by which borders are bent, on the shorter side
BENT = 0.6  # of a cell, about, that a border is moved
IGNORED_SHARE = 0.08  # of the regions, whose class nobody knows


def region_sampler(classes: int, height: int, width: int) -> Sampler:
    """Images and masks: what class a region has is told by its colour, which one pixel does not give away."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    colours = torch.randn(classes + 1, 3, generator=structure)
    colours[classes] = 0  # of regions that are ignored
    placed: dict[torch.device, Tensor] = {}
    short = min(height, width)
    rows, columns = (max(1, round(CELLS * side / short)) for side in (height, width))
    waves = tuple(max(1, round(WAVES * side / short)) for side in (height, width))

    def regions(generator: torch.Generator) -> Tensor:
        """Each pixel's class: that of the cell of a coarse grid in which it comes to lie when it is moved a little."""
        device = generator.device
        grid = torch.randint(classes, (rows * columns,), generator=generator, device=device)
        unknown = torch.rand(grid.shape, generator=generator, device=device) < IGNORED_SHARE
        grid = grid.masked_fill_(unknown, classes)
        coarse = torch.randn(1, 2, *waves, generator=generator, device=device) * BENT
        down, right = F.interpolate(coarse, (height, width), mode="bicubic")[0]
        row = torch.linspace(0, rows, height + 1, device=device)[:-1].view(-1, 1) + down
        column = torch.linspace(0, columns, width + 1, device=device)[:-1] + right
        return grid[row.clamp_(0, rows - 1).long() * columns + column.clamp_(0, columns - 1).long()]

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = colours.to(device)
        images = torch.randn(batch_size, 3, height, width, generator=generator, device=device)
        masks = torch.empty(batch_size, height, width, dtype=torch.long, device=device)
        for at in range(batch_size):  # one by one: what is made on the way is several times as large as a scene
            mask = regions(generator)
            images[at] += placed[device][mask].permute(2, 0, 1)
            masks[at] = mask.masked_fill_(mask == classes, IGNORED)
        return images, masks

    return sample
