"""Where things are: what of each feature level is image, and sine embeddings of places and of boxes.

Everything here is fp32: from 0.5 to 1 bf16 has 128 numbers, and half a feature level has more places than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ENCODER_TEMPERATURE = 20.0  # the paper's, appendix
BOX_TEMPERATURE = 10_000.0  # DAB-DETR's, for the boxes of queries


@dataclass(frozen=True)
class Levels:
    """The feature levels of a padded batch, as the tokens of all of them in a row."""

    shapes: list[tuple[int, int]]  # height and width of each
    extents: Tensor  # batch, levels, 2: columns and rows that hold image, the rest being padding
    valid: Tensor  # batch, tokens: true where there is image

    @cached_property
    def ratios(self) -> Tensor:
        """Batch, levels, 2: the share of each level's width and height that holds image."""
        return self.extents / self.sides

    @cached_property
    def sides(self) -> Tensor:
        """Levels, 2: width and height. Made by filling, since a copy from the host would wait for the device."""
        return _filled([[width, height] for height, width in self.shapes], self.extents.device)

    @cached_property
    def height_width(self) -> Tensor:
        """Levels, 2: the same as whole numbers, the other way round."""
        return self.sides.flip(-1).long()

    @cached_property
    def starts(self) -> Tensor:
        """Levels: the number of each one's first token."""
        counts = self.height_width.prod(-1)
        return counts.cumsum(0) - counts


def _filled(rows: list[list[int]], device: torch.device) -> Tensor:
    return torch.stack([torch.stack([torch.full((), float(value), device=device) for value in row]) for row in rows])


def find_levels(sizes: Tensor, padded: tuple[int, int], shapes: list[tuple[int, int]]) -> Levels:
    """What each level holds of images of these sizes (height, width) that were padded to one size."""
    extents, valid = [], []
    for height, width in shapes:
        # A place holds image where its first pixel does: the nearest neighbour of the pixels' own mask.
        rows = (sizes[:, 0] * height + padded[0] - 1).div(padded[0], rounding_mode="floor")
        columns = (sizes[:, 1] * width + padded[1] - 1).div(padded[1], rounding_mode="floor")
        in_rows = torch.arange(height, device=sizes.device) < rows[:, None]
        in_columns = torch.arange(width, device=sizes.device) < columns[:, None]
        valid.append((in_rows[:, :, None] & in_columns[:, None, :]).flatten(1))
        extents.append(torch.stack((columns, rows), dim=-1))
    return Levels(shapes, torch.stack(extents, dim=1).float(), torch.cat(valid, dim=1))


def centres(levels: Levels) -> Tensor:
    """Batch, tokens, 2: the middle of each token, x and y, as a share of the image without its padding."""
    found = []
    for number, (height, width) in enumerate(levels.shapes):
        device = levels.extents.device
        y = torch.arange(height, device=device, dtype=torch.float32) + 0.5
        x = torch.arange(width, device=device, dtype=torch.float32) + 0.5
        places = torch.stack((x.expand(height, width), y[:, None].expand(height, width)), dim=-1)
        found.append(places.flatten(0, 1) / levels.extents[:, None, number])
    return torch.cat(found, dim=1)


def wave(values: Tensor, width: int, temperature: float) -> Tensor:
    """Sines and cosines of a value in turn, `width` of them, at frequencies that fall geometrically."""
    pair = torch.arange(width // 2, device=values.device, dtype=torch.float32)
    angles = values.float()[..., None] * 2 * math.pi / temperature ** (2 * pair / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def place_embeddings(levels: Levels, hidden: int, temperature: float = ENCODER_TEMPERATURE) -> Tensor:
    """Batch, tokens, hidden: half for the row and half for the column, counted from 1, as shares of the image."""
    found = []
    for number, (height, width) in enumerate(levels.shapes):
        device = levels.extents.device
        columns, rows = levels.extents[:, number, :1], levels.extents[:, number, 1:]
        y = wave((torch.arange(height, device=device) + 1) / rows, hidden // 2, temperature)
        x = wave((torch.arange(width, device=device) + 1) / columns, hidden // 2, temperature)
        y, x = y[:, :, None].expand(-1, -1, width, -1), x[:, None].expand(-1, height, -1, -1)
        found.append(torch.cat((y, x), dim=-1).flatten(1, 2))
    return torch.cat(found, dim=1)


def box_embeddings(boxes: Tensor, hidden: int) -> Tensor:
    """Batch, queries, 2 x hidden: a quarter each for y, x, width and height of a box, as DAB-DETR orders them."""
    x, y, width, height = boxes.unbind(-1)
    return torch.cat([wave(value, hidden // 2, BOX_TEMPERATURE) for value in (y, x, width, height)], dim=-1)
