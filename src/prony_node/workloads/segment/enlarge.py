"""Bilinear enlargement whose gradient goes back by two matrix products.

The library adds each pixel's gradient to the four that it was made of, one after another where they meet: atomic
additions, sixty-four to a pixel where a map of 32x32 became one of 256x256. Enlarging is linear, first along one side
and then along the other, so its gradient is a product with the same two small matrices turned over.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WHOLE_ROWS = 8  # channels, that matrix units take at once


class ByProducts(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, image: Tensor, height: int, width: int, corners: bool) -> Tensor:
        context.before, context.corners = (image.shape[-2], image.shape[-1]), corners
        return F.interpolate(image, (height, width), mode="bilinear", align_corners=corners)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        sides = zip(context.before, gradient.shape[-2:], strict=True)
        rows, columns = (shares(before, after, context.corners, gradient) for before, after in sides)
        return _gathered(gradient, rows, columns), None, None, None


def shares(before: int, after: int, corners: bool, like: Tensor) -> Tensor:
    """Before, after: which share of each place of a line goes into each place of the longer one."""
    alone = torch.eye(before, device=like.device)[None]
    return F.interpolate(alone, after, mode="linear", align_corners=corners)[0].to(like.dtype)


def _gathered(gradient: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    images, channels, height, width = gradient.shape
    if channels % WHOLE_ROWS:  # few classes: their maps are the matrices
        return rows @ gradient @ columns.T
    by_place = gradient.permute(0, 2, 3, 1)
    shorter = (rows @ by_place.reshape(images, height, width * channels)).view(images, -1, width, channels)
    return (columns @ shorter).permute(0, 3, 1, 2)


def enlarged(image: Tensor, size: tuple[int, int], corners: bool = False, products: bool = False) -> Tensor:
    """At that height and width; as it is where that is its own."""
    if image.shape[-2:] == size:
        return image
    if products:
        answer: Tensor = ByProducts.apply(image, *size, corners)
        return answer
    return F.interpolate(image, size, mode="bilinear", align_corners=corners)


class Enlarging(nn.Module):
    """In place of torch's module that enlarges by a factor."""

    def __init__(self, factor: int, corners: bool) -> None:
        super().__init__()
        self.factor, self.corners = factor, corners

    def forward(self, image: Tensor) -> Tensor:
        size = (image.shape[-2] * self.factor, image.shape[-1] * self.factor)
        return enlarged(image, size, self.corners, products=True)
