"""Batches of a data set as a run takes them: without end to train, one pass over the test split to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from prony_node.contract.settings import Value
from prony_node.data.boxed import BoxedImages, box_loader
from prony_node.data.cityscapes import StreetScenes
from prony_node.data.dataset import DataSet, Encoded, Pixels
from prony_node.data.host import HostBatches
from prony_node.data.loader import file_loader
from prony_node.data.memory import MemoryBatches, mirrored, normalise, shifted
from prony_node.data.street_loader import streets_to_test, streets_to_train

Batch = tuple[Tensor, ...]
WITHOUT_MIRROR = ("mnist",)  # a mirrored digit is no digit


class Batches(Protocol):
    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def close(self) -> None: ...


def sends_beside(settings: dict[str, Value], device: torch.device) -> bool:
    """Whether a thread copies batches beside the step: on a GPU, where workers load them; only preset=fast has one."""
    return device.type == "cuda" and settings.get("preset") == "fast" and int(settings["workers"]) > 0


def training_batches(
    dataset: DataSet, settings: dict[str, Value], samples: int, device: torch.device, seed: int
) -> Batches:
    """Shuffled, whole batches, as they lie: pixels as bytes, tokens as numbers."""
    augment = bool(settings.get("augment"))
    if isinstance(dataset, Pixels) and settings["cache"] == "device":
        mirror = dataset.kind not in WITHOUT_MIRROR
        return MemoryBatches(dataset, samples, device=device, augment=augment, flip=mirror, seed=seed)
    workers, pin = int(settings["workers"]), bool(settings["pin_memory"])
    prefetch = int(settings["prefetch"]) if "prefetch" in settings else None
    if isinstance(dataset, BoxedImages):
        return box_loader(
            dataset,
            samples,
            workers=workers,
            prefetch=prefetch,
            pin_memory=pin,
            augment=augment,
            cache=str(settings["cache"]),
            seed=seed,
        )
    if isinstance(dataset, Encoded):
        return file_loader(
            dataset,
            samples,
            workers=workers,
            prefetch=prefetch,
            pin_memory=pin,
            decode=str(settings["decode"]),
            augment=augment,
            cache=str(settings["cache"]),
            image_size=int(settings["image_size"]),
            seed=seed,
            device=device,
            sends=sends_beside(settings, device),
        )
    if isinstance(dataset, StreetScenes):
        return streets_to_train(
            dataset,
            samples,
            height=int(settings["crop_height"]),
            width=int(settings["crop_width"]),
            workers=workers,
            prefetch=prefetch,
            pin_memory=pin,
            augment=augment,
            cache=str(settings["cache"]),
            seed=seed,
        )
    return HostBatches(dataset, samples, seed=seed, workers=workers, prefetch=prefetch, pin_memory=pin)


def evaluation_batches(dataset: DataSet, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
    """One pass in order, the last batch as it comes, nothing augmented."""
    if isinstance(dataset, Pixels):
        return MemoryBatches(dataset, samples, device=device, augment=False, endless=False)
    workers = int(settings["workers"])
    if isinstance(dataset, BoxedImages):
        pin = bool(settings["pin_memory"])
        return box_loader(dataset, samples, workers=workers, pin_memory=pin, augment=False, endless=False)
    if isinstance(dataset, Encoded):
        return file_loader(
            dataset,
            samples,
            workers=workers,
            pin_memory=bool(settings["pin_memory"]),
            decode="cpu" if settings["decode"] == "both" else str(settings["decode"]),  # one judge for all
            augment=False,
            image_size=int(settings["image_size"]),
            endless=False,
            device=device,
        )
    if isinstance(dataset, StreetScenes):
        height, width, pin = int(settings["crop_height"]), int(settings["crop_width"]), bool(settings["pin_memory"])
        return streets_to_test(dataset, samples, height=height, width=width, workers=workers, pin_memory=pin)
    return OnePass(dataset, samples, workers)


class OnePass:
    """A test split that is read sample by sample."""

    def __init__(self, dataset: DataSet, samples: int, workers: int) -> None:
        self._batches: Iterator[Batch] = map(tuple, DataLoader(dataset, batch_size=samples, num_workers=workers))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        self._batches = iter(())


def sent(batch: Batch, device: torch.device, on_host: tuple[int, ...]) -> Batch:
    """The batch on the device, but for what the host must know: asked for there, it would have to be waited for."""
    return tuple(tensor if at in on_host else tensor.to(device, non_blocking=True) for at, tensor in enumerate(batch))


def preparation(
    reads: str,
    dataset: DataSet,
    settings: dict[str, Value],
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    on_host: tuple[int, ...] = (),
) -> Callable[[Batch], Batch]:
    """What is done to a training batch on the device before the step: copy, augment, normalise, resize."""
    generator = torch.Generator(device).manual_seed(seed)
    on_device = settings.get("cache") == "device"
    augment = isinstance(dataset, Pixels) and bool(settings.get("augment")) and not on_device

    def prepare(batch: Batch) -> Batch:
        here = sent(batch, device, on_host)
        if augment:
            images = shifted(here[0], generator)
            images = mirrored(images, generator) if dataset.kind not in WITHOUT_MIRROR else images
            here = (images, *here[1:])
        return as_input(reads, dataset.kind, here, int(settings.get("image_size", 0)), dtype)

    return prepare


def as_input(reads: str, kind: str, batch: Batch, size: int, dtype: torch.dtype) -> Batch:
    """A batch that lies on the device as a model takes it."""
    if reads == "grey":
        return (batch[0].to(dtype) / 255,)
    if reads == "boxes":  # a detector normalises for itself
        return batch[0].to(dtype) / 255, *batch[1:]
    if reads == "masks":
        return normalise(batch[0], kind, dtype), batch[1].long()
    if reads != "images":
        return batch
    images = normalise(batch[0], kind, dtype)
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if images.shape[-1] != size:  # a set of small pictures, and a model that takes larger ones
        images = F.interpolate(images, (size, size), mode="bilinear", antialias=images.shape[-1] > size)
    return images, batch[1]
