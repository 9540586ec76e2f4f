"""What detectors of torchvision's kind share: lists made of a padded batch, and one tensor made of their answers."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from prony_node.data.boxes import BOXES, COUNTS, IMAGES, LABELS, SIZES
from prony_node.data.scenes import MOST_BOXES
from prony_node.measure.protocol import Batch

FOUND = 6  # numbers of a found box: x1, y1, x2, y2, score, label


def image_list(batch: Batch) -> list[Tensor]:
    """Each image without its padding. Its size must be known to the host, which waits for it."""
    sizes = batch[SIZES].tolist()
    return [image[:, :height, :width] for image, (height, width) in zip(batch[IMAGES], sizes, strict=True)]


def target_list(batch: Batch) -> list[dict[str, Tensor]]:
    counts = batch[COUNTS].tolist()
    return [
        {"boxes": boxes[:count], "labels": labels[:count]}
        for boxes, labels, count in zip(batch[BOXES], batch[LABELS], counts, strict=True)
    ]


def found_boxes(answers: list[dict[str, Tensor]]) -> Tensor:
    """The best boxes of each image, the best first: images x 100 x 6, rows without a box being zero."""
    device = answers[0]["boxes"].device
    found = torch.zeros(len(answers), MOST_BOXES, FOUND, device=device)
    for row, answer in zip(found, answers, strict=True):
        parts = (answer["boxes"].float(), answer["scores"][:, None].float(), answer["labels"][:, None].float())
        best = torch.cat(parts, dim=1)[:MOST_BOXES]
        row[: len(best)] = best
    return found


def low_precision(model: nn.Module) -> AbstractContextManager[Any]:
    """Around a model with 16-bit weights: torchvision's operations on boxes have no kernels of that width."""
    weight = next(model.parameters())
    if weight.dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(weight.device.type, dtype=weight.dtype, cache_enabled=False)
