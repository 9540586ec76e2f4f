"""Images with boxes to be found, in batches of different shapes.

A batch is (images, sizes, boxes, labels, counts): images are floats from 0 to 1, padded with zeros below and to the
right to the largest of the batch; sizes are height and width of what is not padding; boxes are x1, y1, x2, y2 in
pixels of their image; labels count from 1, since 0 is the background's; rows of boxes and labels beyond an image's
count are zero, and there are as many rows in every batch of a run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.data.scenes import COCO_SCENERY, Box, Scene, Scenery, draw_scene
from prony_node.data.synthetic import STRUCTURE_SEED, Sampler

PATTERN = 4  # a class is a colour, and a pattern of 4x4 lighter and darker fields on it
GROUND, NOISE, CONTRAST = 0.5, 0.05, 0.15
IMAGES, SIZES, BOXES, LABELS, COUNTS = range(5)  # what lies where in a batch


def box_sampler(classes: int, scenery: Scenery = COCO_SCENERY, scale_to: tuple[int, int] | None = None) -> Sampler:
    """Images of noise with boxes of their class's colours, labels from 1 to classes - 1.

    `scale_to` draws images of another size: a length for the shorter side, and the most for the longer one.
    """
    textures = class_textures(classes)
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = textures.to(device)
        seeds = torch.randint(2**62, (batch_size,), generator=generator, device=device).tolist()
        scenes = [draw_scene(scenery, classes, random.Random(seed), scale_to) for seed in seeds]
        high, wide = max(scene.height for scene in scenes), max(scene.width for scene in scenes)
        images = torch.zeros(batch_size, 3, high, wide, device=device)
        for image, scene in zip(images, scenes, strict=True):
            noise = torch.randn(3, scene.height, scene.width, generator=generator, device=device)
            image[:, : scene.height, : scene.width] = (painted(scene, placed[device]) + NOISE * noise).clamp_(0, 1)
        return images, *(tensor.to(device) for tensor in _answers(scenes, scenery.most))

    return sample


def class_textures(classes: int) -> Tensor:
    """Classes x 3 x 4 x 4, from 0 to 1: what is to be learned is the same for every seed."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    colours = torch.rand(classes, 3, 1, 1, generator=structure)
    fields = torch.randn(classes, 1, PATTERN, PATTERN, generator=structure)
    return (0.1 + 0.8 * colours + CONTRAST * fields).clamp_(0, 1)


def painted(scene: Scene, textures: Tensor) -> Tensor:
    """The scene without noise, on the textures' device: 3 x height x width."""
    image = torch.full((3, scene.height, scene.width), GROUND, device=textures.device)
    for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
        field = F.interpolate(textures[label][None], (bottom - top, right - left), mode="nearest")
        image[:, top:bottom, left:right] = field[0]
    return image


def _answers(scenes: Sequence[Scene], most: int) -> tuple[Tensor, ...]:
    sizes = torch.tensor([(scene.height, scene.width) for scene in scenes])
    rows = [box_rows(scene.boxes, scene.labels, most) for scene in scenes]
    counts = torch.tensor([len(scene.boxes) for scene in scenes])
    return sizes, torch.stack([boxes for boxes, _ in rows]), torch.stack([labels for _, labels in rows]), counts


def box_rows(boxes: Sequence[Box | tuple[float, ...]], labels: Sequence[int], most: int) -> tuple[Tensor, Tensor]:
    """Boxes and labels of an image in `most` rows, those without a box being zero."""
    rows, numbers = torch.zeros(most, 4), torch.zeros(most, dtype=torch.int64)
    if boxes:
        rows[: len(boxes)] = torch.tensor(boxes, dtype=torch.float32)
        numbers[: len(labels)] = torch.tensor(labels)
    return rows, numbers


def padded(samples: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Samples as a batch: each tensor padded with zeros at its ends to the largest of its place."""
    return tuple(_stacked(tensors) for tensors in zip(*samples, strict=True))


def _stacked(tensors: tuple[Tensor, ...]) -> Tensor:
    if all(tensor.shape == tensors[0].shape for tensor in tensors):
        return torch.stack(tensors)
    largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = tensors[0].new_zeros((len(tensors), *largest))
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch
