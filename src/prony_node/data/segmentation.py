"""Images with a class for every pixel: synthetic scenes, Cityscapes, and batches cropped from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.contract.settings import Value
from prony_node.data.dataset import Batches, DataSetLayout, FileSet, Origin, as_tensor, listing, named, refuse
from prony_node.data.labelled_images import files_set
from prony_node.data.loader import (
    Encoded,
    EpochOrder,
    FileBatches,
    ImageCache,
    Place,
    decoded,
    decoded_as_it_is,
    fill_cache,
    seed_of,
    worker_loader,
)
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


class StreetScenes(FileSet):
    """Images and their masks, both as they lie on disk, to be decoded by the loader."""

    encoded_bytes: int

    def __init__(self, origin: Origin, images: Encoded, masks: Encoded) -> None:
        super().__init__(origin, CLASSES, torch.zeros(len(images), dtype=torch.int64))
        self.images, self.masks = images, masks
        self.encoded_bytes = images.encoded_bytes + masks.encoded_bytes

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.images[index][0], self.masks[index][0]

    def subset(self, indices: Tensor) -> StreetScenes:
        return StreetScenes(self.origin, self.images.subset(indices), self.masks.subset(indices))

    def training_batches(self, settings: dict[str, Value], samples: int, device: torch.device, seed: int) -> Batches:
        return streets_to_train(
            self,
            samples,
            height=int(settings["crop_height"]),
            width=int(settings["crop_width"]),
            workers=int(settings["workers"]),
            prefetch=int(settings["prefetch"]) if "prefetch" in settings else None,
            pin_memory=bool(settings["pin_memory"]),
            augment=bool(settings.get("augment")),
            cache=str(settings["cache"]),
            seed=seed,
        )

    def evaluation_batches(self, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
        workers, pin = int(settings["workers"]), bool(settings["pin_memory"])
        height, width = int(settings["crop_height"]), int(settings["crop_width"])
        return streets_to_test(self, samples, height=height, width=width, workers=workers, pin_memory=pin)

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


Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class SceneWindow:
    """A part of a scene. Beyond the scene it is black and ignored, as is what another window has judged already."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False
    judged_rows: int = 0  # at its top
    judged_columns: int = 0  # at its left

    def cut(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        part, labels = image[:, rows, columns], trained_ids()[mask[rows, columns].long()]
        labels[: self.judged_rows] = IGNORED
        labels[:, : self.judged_columns] = IGNORED
        beyond = (0, self.width - labels.shape[1], 0, self.height - labels.shape[0])
        if any(beyond):
            part, labels = F.pad(part, beyond), F.pad(labels, beyond, value=IGNORED)
        return (part.flip(-1), labels.flip(-1)) if self.flip else (part, labels)


def window_to_train(rows: int, columns: int, height: int, width: int, augment: bool, seed: int) -> SceneWindow:
    """Anywhere, mirrored by chance; or the middle, as it is."""
    down, right = max(0, rows - height), max(0, columns - width)
    if not augment:
        return SceneWindow(down // 2, right // 2, height, width)
    generator = torch.Generator().manual_seed(seed)
    at_row, at_column, flip = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    return SceneWindow(int(at_row * (down + 1)), int(at_column * (right + 1)), height, width, flip < 0.5)


def windows_to_test(rows: int, columns: int, height: int, width: int) -> list[SceneWindow]:
    """Side by side over the whole scene; the last ones are moved back into it, and judge only what is new to them."""
    found = []
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            top, left = min(row, max(0, rows - height)), min(column, max(0, columns - width))
            found.append(
                SceneWindow(top, left, height, width, judged_rows=row - top, judged_columns=column - left),
            )
    return found


class Cropped(Dataset[Batch]):
    """What a worker does with scenes to train: read them, decode them, take a part of each."""

    def __init__(self, source: StreetScenes, height: int, width: int, augment: bool, seed: int, cached: bool) -> None:
        self._source, self._height, self._width, self._augment, self._seed = source, height, width, augment, seed
        self._held = (fill_cache(source.images), fill_cache(source.masks)) if cached else (None, None)

    def scene(self, index: int) -> tuple[Tensor, Tensor]:
        images, masks = self._source.images, self._source.masks
        where = masks.where(index)
        image = decoded(_read(images, self._held[0], index), images.where(index))
        mask = decoded_as_it_is(_read(masks, self._held[1], index), where)
        if len(mask) != 1 or mask.dtype != torch.uint8:
            depth = 8 if mask.dtype == torch.uint8 else 16
            raise RequestError(f"{where} has {len(mask)} x {depth} bits per pixel: expected a mask of 8 bits per pixel")
        if mask.shape[1:] != image.shape[1:]:
            raise RequestError(f"{where} has {_size(mask)} pixels, and its image has {_size(image)}")
        if int(mask.max()) >= len(LABELS):
            known = f"label ids from 0 to {len(LABELS) - 1}, as in gtFine_labelIds.png"
            raise RequestError(f"{where} holds {int(mask.max())}: expected {known}")
        return image, mask[0]

    def __getitems__(self, places: list[Place]) -> Batch:
        images = torch.empty((len(places), 3, self._height, self._width), dtype=torch.uint8)
        masks = torch.empty((len(places), self._height, self._width), dtype=torch.uint8)
        for at, (epoch, index) in enumerate(places):
            image, mask = self.scene(index)
            rows, columns = mask.shape
            seed = seed_of(self._seed, epoch, index)
            window = window_to_train(rows, columns, self._height, self._width, self._augment, seed)
            images[at], masks[at] = window.cut(image, mask)
        return images, masks


class Tiled(Cropped):
    """The same to test: all of each scene."""

    def __getitems__(self, places: list[Place]) -> Batch:
        parts = []
        for _, index in places:
            image, mask = self.scene(index)
            rows, columns = mask.shape
            parts += [part.cut(image, mask) for part in windows_to_test(rows, columns, self._height, self._width)]
        return torch.stack([image for image, _ in parts]), torch.stack([mask for _, mask in parts])


def _read(source: Encoded, held: ImageCache | None, index: int) -> Tensor:
    return held.read(index) if held else as_tensor(source.read(index))


def _size(image: Tensor) -> str:
    return f"{image.shape[-1]}x{image.shape[-2]}"


class TileBatches(Batches):
    """Tiles of scene after scene, so many to a batch, the last batch as it comes."""

    def __init__(self, scenes: FileBatches, rows: int) -> None:
        self._scenes = scenes
        self._batches = self._grouped(rows)

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches = iter(())
        self._scenes.close()

    def _grouped(self, rows: int) -> Iterator[Batch]:
        held: Batch = ()
        for scene in self._scenes:
            held = tuple(map(torch.cat, zip(held, scene, strict=True))) if held else scene
            while len(held[0]) >= rows:
                yield tuple(tensor[:rows] for tensor in held)
                held = tuple(tensor[rows:] for tensor in held)
        if held and len(held[0]):
            yield held


def streets_to_train(
    dataset: StreetScenes,
    batch_size: int,
    *,
    height: int,
    width: int,
    workers: int,
    prefetch: int | None = 2,
    pin_memory: bool = False,
    augment: bool = True,
    cache: str = "off",
    seed: int = 0,
) -> FileBatches:
    """Batches of (uint8 images, uint8 classes) without end, shuffled; the same for a seed, however many workers."""
    order = EpochOrder(len(dataset), batch_size, seed, endless=True)  # refuses before a cache is filled
    task = Cropped(dataset, height, width, augment, seed, cache == "memory")
    return FileBatches(worker_loader(task, order, workers, prefetch, pin_memory))


def streets_to_test(
    dataset: StreetScenes, rows: int, *, height: int, width: int, workers: int, pin_memory: bool = False
) -> TileBatches:
    """One pass in order, every pixel of every scene once, in batches of so many tiles."""
    task = Tiled(dataset, height, width, augment=False, seed=0, cached=False)
    order = EpochOrder(len(dataset), 1, 0, endless=False)
    return TileBatches(FileBatches(worker_loader(task, order, workers, None, pin_memory)), rows)


DATA_SETS = {"cityscapes": DataSetLayout(is_cityscapes, lambda folder, split, _: open_cityscapes(folder, split))}
