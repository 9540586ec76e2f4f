"""Made scenes as COCO has its own: JPEGs, and a document that says which boxes lie in each."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from prony_node.data.boxes import painted
from prony_node.data.pictures import Look, encoded, grained
from prony_node.data.scenes import Scene, Scenery, draw_scene

# COCO's 80 categories have these numbers: eleven more were planned, and never annotated.
COCO_NUMBERS = tuple(number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
LIGHT = 12  # deviation of the light between images, of 255


def made_scene(scenery: Scenery, classes: int, seed: int) -> Scene:
    """The same for the same seed; a label of it is the place of a category, from 1 on."""
    return draw_scene(scenery, classes + 1, random.Random(seed))


def scene_jpeg(look: Look, scene: Scene, textures: Tensor, seed: int) -> bytes:
    """Boxes in the colours of their classes, in a light of the image's own, under grain as in photographs."""
    chance = random.Random(seed + 1)  # another than the scene was drawn by
    generator = torch.Generator().manual_seed(seed)
    light = torch.randn(1, 3, 1, 1, generator=generator) * LIGHT
    image = grained(light, (scene.height, scene.width), look.strength(chance), generator)
    return encoded(image.add_(painted(scene, textures), alpha=255), look)


def instances(scenes: Iterable[tuple[int, str, Scene]], classes: int) -> dict[str, Any]:
    """The document beside the images, each with its number and file name."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, name, scene in scenes:
        images.append({"id": number, "file_name": name, "width": scene.width, "height": scene.height})
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
            wide, high = right - left, bottom - top
            annotation = {"id": len(annotations) + 1, "image_id": number, "category_id": COCO_NUMBERS[label - 1]}
            outline = [left, top, right, top, right, bottom, left, bottom]
            place = {"bbox": [left, top, wide, high], "area": wide * high, "iscrowd": 0, "segmentation": [outline]}
            annotations.append(annotation | place)
    categories = [{"id": COCO_NUMBERS[at], "name": f"c{at + 1:05d}", "supercategory": "made"} for at in range(classes)]
    return {"images": images, "annotations": annotations, "categories": categories}
