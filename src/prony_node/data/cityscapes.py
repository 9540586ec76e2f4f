"""Cityscapes: street scenes, each with a mask of label ids, in the data set's own layout."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from prony_node.data.dataset import DataSet, Encoded, Origin, listing, named, refuse
from prony_node.data.folders import files_set
from prony_node.data.regions import IGNORED

# The data set's public table of labels, by id. Those of CLASSES are trained and judged, the others are ignored.
LABELS = (
    "unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground", "road", "sidewalk",
    "parking", "rail track", "building", "wall", "fence", "guard rail", "bridge", "tunnel", "pole", "polegroup",
    "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus",
    "caravan", "trailer", "train", "motorcycle", "bicycle",
)  # fmt: skip
CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
IMAGES, MASKS = "leftImg8bit", "gtFine"
IMAGE_END, MASK_END = "_leftImg8bit.png", "_gtFine_labelIds.png"
FOLDERS = {"train": "train", "test": "val"}  # the masks of Cityscapes' own test split are not published
EXPECTED = f"{IMAGES}/train/CITY/*{IMAGE_END} and {MASKS}/train/CITY/*{MASK_END}, and the same in val"


def label_id(name: str) -> int:
    return LABELS.index(name)


@lru_cache(maxsize=1)
def trained_ids() -> Tensor:
    """From a label id to the number of its class, 255 where it has none."""
    table = torch.full((len(LABELS),), IGNORED, dtype=torch.uint8)
    for number, name in enumerate(CLASSES):
        table[label_id(name)] = number
    return table


class StreetScenes(DataSet):
    """Images and their masks, both as they lie on disk, to be decoded by the loader."""

    def __init__(self, origin: Origin, images: Encoded, masks: Encoded) -> None:
        super().__init__(origin, CLASSES, torch.zeros(len(images), dtype=torch.int64))
        self.images, self.masks = images, masks

    @property
    def encoded_bytes(self) -> int:
        return self.images.encoded_bytes + self.masks.encoded_bytes

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.images[index][0], self.masks[index][0]

    def scores(self, answered: dict[str, Tensor]) -> dict[str, float]:
        """Mean intersection over union, and the loss of a pixel: both from pixels counted over the whole split.

        A class that no mask of the split has is left out: there is nothing to find.
        """
        pixels = {name: values.double().sum(0) for name, values in answered.items()}
        occurs = pixels["labelled"] > 0
        union = pixels["labelled"] + pixels["answered"] - pixels["intersection"]
        each = pixels["intersection"][occurs] / union[occurs]
        return {"miou": float(each.mean()), "loss": float(pixels["loss"] / pixels["labelled"].sum())}


def is_cityscapes(folder: Path) -> bool:
    return (folder / IMAGES).is_dir() or (folder / MASKS).is_dir()


def open_cityscapes(folder: Path, split: str) -> StreetScenes:
    """Every image of a split must have its mask, and every mask its image."""
    name = FOLDERS[split]
    images, masks = (_by_scene(folder / kind / name, end) for kind, end in ((IMAGES, IMAGE_END), (MASKS, MASK_END)))
    if not images or not masks:
        raise refuse(folder, "Cityscapes folder", EXPECTED, _found(folder, name, len(images), len(masks)))
    without_mask, without_image = sorted(set(images) - set(masks)), sorted(set(masks) - set(images))
    if without_mask or without_image:
        wrong = [
            f"{len(scenes):,} {what} ({named(scenes)})"
            for scenes, what in ((without_mask, "images without a mask"), (without_image, "masks without an image"))
            if scenes
        ]
        raise refuse(folder, "Cityscapes folder", f"an image and a mask of each scene in {name}", "; ".join(wrong))
    scenes = sorted(images)
    pictures, drawn = tuple(images[scene] for scene in scenes), tuple(masks[scene] for scene in scenes)
    origin = Origin("cityscapes", split, folder, (*pictures, *drawn))
    sets = [
        files_set(Origin("cityscapes", split, folder, files), list(CLASSES), [0] * len(scenes))
        for files in (pictures, drawn)
    ]
    return StreetScenes(origin, *sets)


def _by_scene(folder: Path, end: str) -> dict[str, Path]:
    """`CITY/CITY_SEQUENCE_FRAME` to its file; other files lie beside them (colours, polygons, instances)."""
    found = (path for path in folder.glob(f"*/*{end}") if not path.name.startswith("."))
    return {f"{path.parent.name}/{path.name.removesuffix(end)}": path for path in found}


def _found(folder: Path, name: str, images: int, masks: int) -> str:
    if images or masks:
        return f"{images:,} images and {masks:,} masks in {name}"
    parts = [f"{kind} with {listing(folder / kind)}" for kind in (IMAGES, MASKS) if (folder / kind).is_dir()]
    return " and ".join(parts) or listing(folder)
