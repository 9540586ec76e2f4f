"""Batches of scenes from files: an image and its mask decoded, cropped and mirrored together by worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.data.cache import Cache, fill_cache
from prony_node.data.cityscapes import LABELS, StreetScenes, trained_ids
from prony_node.data.dataset import Encoded, as_tensor
from prony_node.data.decode import decoded, decoded_as_it_is, seed_of
from prony_node.data.loader import EpochOrder, FileBatches, Place, worker_loader
from prony_node.data.regions import IGNORED

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Window:
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


def window_to_train(rows: int, columns: int, height: int, width: int, augment: bool, seed: int) -> Window:
    """Anywhere, mirrored by chance; or the middle, as it is."""
    down, right = max(0, rows - height), max(0, columns - width)
    if not augment:
        return Window(down // 2, right // 2, height, width)
    generator = torch.Generator().manual_seed(seed)
    at_row, at_column, flip = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    return Window(int(at_row * (down + 1)), int(at_column * (right + 1)), height, width, flip < 0.5)


def windows_to_test(rows: int, columns: int, height: int, width: int) -> list[Window]:
    """Side by side over the whole scene; the last ones are moved back into it, and judge only what is new to them."""
    found = []
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            top, left = min(row, max(0, rows - height)), min(column, max(0, columns - width))
            found.append(
                Window(top, left, height, width, judged_rows=row - top, judged_columns=column - left),
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


def _read(source: Encoded, held: Cache | None, index: int) -> Tensor:
    return held.read(index) if held else as_tensor(source.read(index))


def _size(image: Tensor) -> str:
    return f"{image.shape[-1]}x{image.shape[-2]}"


class TileBatches:
    """Tiles of scene after scene, so many to a batch, the last batch as it comes."""

    def __init__(self, scenes: FileBatches, rows: int) -> None:
        self._scenes = scenes
        self._batches = self._grouped(rows)

    def __iter__(self) -> Iterator[Batch]:
        return self

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
