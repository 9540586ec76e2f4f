"""Images in files with the boxes that lie in them: what is read to train, and how answers to a test are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from prony_node.contract import RequestError
from prony_node.data.average_precision import FoundBox, Truth, found_in, mean_average_precision
from prony_node.data.boxes import box_rows, padded
from prony_node.data.cache import Cache, fill_cache
from prony_node.data.dataset import Encoded, FileReader, Origin, as_tensor
from prony_node.data.decode import decoded, seed_of
from prony_node.data.loader import EpochOrder, FileBatches, Place, worker_loader
from prony_node.data.scenes import scale_of

THINNEST = 0.01  # pixels: a box of less has no inside, and no detector can be shown it


@dataclass(frozen=True)
class BoxTable:
    """The boxes of all images one after another, in few tensors: workers share them without a copy."""

    corners: Tensor  # boxes x 4: x1, y1, x2, y2, as they were stated
    labels: Tensor
    crowds: Tensor
    ends: Tensor  # of each image's boxes
    sizes: Tensor  # images x 2: height and width, as they were stated

    def of(self, index: int) -> slice:
        return slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))

    def chosen(self, places: Sequence[int]) -> BoxTable:
        every = [torch.arange(part.start, part.stop) for part in map(self.of, places)]
        rows = torch.cat(every) if every else torch.zeros(0, dtype=torch.int64)
        ends = torch.tensor([len(part) for part in every], dtype=torch.int64).cumsum(0)
        return BoxTable(self.corners[rows], self.labels[rows], self.crowds[rows], ends, self.sizes[list(places)])

    def to_learn(self, index: int) -> tuple[Tensor, Tensor]:
        """Boxes and labels of an image to train on: inside of it, no crowds, nothing without an inside."""
        part = self.of(index)
        height, width = self.sizes[index].tolist()
        corners = self.corners[part].clamp(min=0)
        corners = torch.minimum(corners, torch.tensor([width, height, width, height])).float()
        kept = ~self.crowds[part] & (corners[:, 2:] - corners[:, :2] > THINNEST).all(1)
        return corners[kept], self.labels[part][kept]

    def most(self) -> int:
        """The most boxes that any image has."""
        starts = torch.cat([self.ends.new_zeros(1), self.ends[:-1]])
        return int((self.ends - starts).max()) if len(self.ends) else 0


class BoxedImages(Encoded):
    """Encoded images with boxes."""

    def __init__(
        self,
        origin: Origin,
        named: Mapping[int, str],
        files: Sequence[Path],
        encoded_bytes: int,
        boxes: BoxTable,
    ) -> None:
        super().__init__(
            origin, list(named.values()), torch.zeros(len(files), dtype=torch.int64), FileReader(files), encoded_bytes
        )
        self.named, self.files, self.boxes = named, files, boxes  # names by label, from 1 on
        self.scale_to: tuple[int, int] | None = None  # for the shorter side, and the most for the longer one

    @property
    def label_count(self) -> int:
        """The largest label and one more, since 0 is the background's."""
        return max(self.named) + 1

    def chosen(self, places: Sequence[int]) -> BoxedImages:
        files = [self.files[place] for place in places]
        size = round(self.encoded_bytes * len(places) / len(self))
        return BoxedImages(self.origin, self.named, files, size, self.boxes.chosen(places))

    def scores(self, answered: dict[str, Tensor]) -> dict[str, float]:
        """Mean average precision of the boxes that were found in each image, in order."""
        pairs = ((self.truths(index), found_in(rows.tolist())) for index, rows in enumerate(answered["found"]))
        images: list[tuple[list[Truth], list[FoundBox]]] = list(pairs)
        return {"map": mean_average_precision(images)}

    def truths(self, index: int) -> list[Truth]:
        """As large as the image that a detector is shown."""
        part = self.boxes.of(index)
        corners = self.boxes.corners[part]
        if self.scale_to is not None:
            height, width = self.boxes.sizes[index].tolist()
            high, wide = scaled_size(height, width, self.scale_to)
            corners = corners * corners.new_tensor([wide / width, high / height] * 2)
        lists = (self.boxes.labels[part].tolist(), corners.tolist(), self.boxes.crowds[part].tolist())
        return [Truth(*one) for one in zip(*lists, strict=True)]


class DecodedBoxes(Dataset[tuple[Tensor, ...]]):
    """What a worker does for a batch: read, decode, mirror by chance, scale where asked to, pad to the largest."""

    def __init__(self, source: BoxedImages, augment: bool, seed: int, cache: Cache | None) -> None:
        self._source, self._augment, self._seed, self._cache = source, augment, seed, cache
        self._most = max(1, source.boxes.most())  # the same for all batches, so that a shape says nothing of a count

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        return padded([self._sample(epoch, index) for epoch, index in places])

    def _sample(self, epoch: int, index: int) -> tuple[Tensor, ...]:
        source = self._source
        data = self._cache.read(index) if self._cache else as_tensor(source.read(index))
        image = decoded(data, source.where(index))
        size = torch.tensor(image.shape[1:])
        if not torch.equal(size, source.boxes.sizes[index]):
            stated = " by ".join(str(side) for side in source.boxes.sizes[index].flip(0).tolist())
            real = " by ".join(str(side) for side in size.flip(0).tolist())
            raise RequestError(f"{source.files[index]} has {real} pixels; its annotations are of one of {stated}")
        boxes, labels = source.boxes.to_learn(index)
        if self._augment and seed_of(self._seed, epoch, index) % 2:
            image, boxes = mirrored_boxes(image, boxes)
        if source.scale_to is not None:
            image, boxes = scaled_boxes(image, boxes, source.scale_to)
            size = torch.tensor(image.shape[1:])
        return image, size, *box_rows(boxes.tolist(), labels.tolist(), self._most), torch.tensor(len(boxes))


def mirrored_boxes(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Left to right."""
    left, top, right, bottom = boxes.unbind(1)
    width = image.shape[-1]
    return image.flip(-1), torch.stack((width - right, top, width - left, bottom), dim=1)


def scaled_size(height: int, width: int, scale_to: tuple[int, int]) -> tuple[int, int]:
    factor = scale_of(width, height, *scale_to)
    return max(1, round(height * factor)), max(1, round(width * factor))


def scaled_boxes(image: Tensor, boxes: Tensor, scale_to: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The image and its boxes at the size that a detector takes."""
    height, width = image.shape[1:]
    high, wide = scaled_size(height, width, scale_to)
    pixels = image[None].contiguous(memory_format=torch.channels_last)  # torch resizes bytes faster so
    scaled = F.interpolate(pixels, (high, wide), mode="bilinear", antialias=True)[0]
    return scaled, boxes * boxes.new_tensor([wide / width, high / height] * 2)


def box_loader(
    dataset: BoxedImages,
    batch_size: int,
    *,
    workers: int,
    prefetch: int | None = 2,
    pin_memory: bool = False,
    augment: bool = True,
    cache: str = "off",
    seed: int = 0,
    endless: bool = True,
) -> FileBatches:
    """Batches in the layout of boxes.py, images being uint8; the same for the same seed, with any number of workers."""
    order = EpochOrder(len(dataset), batch_size, seed, endless)  # refuses before a cache is filled
    held = fill_cache(dataset) if cache == "memory" else None
    return FileBatches(worker_loader(DecodedBoxes(dataset, augment, seed, held), order, workers, prefetch, pin_memory))
