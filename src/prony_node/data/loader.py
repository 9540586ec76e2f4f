"""Batches of images from files, read, decoded, augmented and stacked by worker processes, with a cache in memory."""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.data.ahead import MOMENT_S, DecodeShare, DeviceDecoder, Prefetcher, Ready, received
from prony_node.data.dataset import Encoded, as_tensor
from prony_node.data.decode import decode_on_cpu, seed_of

MEMORY_SHARE = 0.8  # of what is free, that a cache may take


@dataclass(frozen=True)
class ImageCache:
    """Every image's bytes in one piece of memory, read once before the workers start and seen by all of them."""

    data: Tensor
    ends: list[int]

    def read(self, index: int) -> Tensor:
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]


def fill_cache(source: Encoded) -> ImageCache:
    free = _free_memory_bytes()
    if free is not None and source.encoded_bytes > MEMORY_SHARE * free:
        raise RequestError(
            f"cache=memory would hold {source.encoded_bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free here"
        )
    data, ends = bytearray(), []
    for index in range(len(source)):
        data += source.read(index)
        ends.append(len(data))
    return ImageCache(torch.frombuffer(data, dtype=torch.uint8), ends)


def _free_memory_bytes() -> int | None:
    """What the system says is free, or what the container's limit leaves of it."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return min(free, max(0, limit - used))
    except (OSError, ValueError):
        return free


DECODERS = {"cpu": 0.0, "device": 1.0, "both": None}  # and the device's share of the work; None: by their speeds
CACHES = ("off", "memory")
Place = tuple[int, int]  # epoch, sample


class EpochOrder(Sampler[list[Place]]):
    """Which samples make each batch. Without end, workers read on over the end of an epoch."""

    def __init__(self, samples: int, batch_size: int, seed: int, endless: bool) -> None:
        if batch_size < 1 or (endless and batch_size > samples):
            raise RequestError(f"batch_size={batch_size} does not fit a set of {samples:,} samples")
        self._samples, self._batch_size, self._seed, self._endless = samples, batch_size, seed, endless

    def __iter__(self) -> Iterator[list[Place]]:
        if not self._endless:
            yield from self._split(0, list(range(self._samples)))
            return
        generator = torch.Generator().manual_seed(self._seed)
        epoch = 0
        while True:
            order = torch.randperm(self._samples, generator=generator).tolist()
            yield from self._split(epoch, order[: self._samples // self._batch_size * self._batch_size])
            epoch += 1

    def _split(self, epoch: int, order: list[int]) -> Iterator[list[Place]]:
        for at in range(0, len(order), self._batch_size):
            yield [(epoch, index) for index in order[at : at + self._batch_size]]


class DecodedImages(Dataset[tuple[Tensor, ...]]):
    """What a worker does with one sample: read it, decode it, crop it."""

    def __init__(self, source: Encoded, size: int, augment: bool, seed: int, cache: ImageCache | None) -> None:
        self._source, self._size, self._augment, self._seed, self._cache = source, size, augment, seed, cache

    def encoded(self, index: int) -> Tensor:
        return self._cache.read(index) if self._cache else as_tensor(self._source.read(index))

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        return self.pixels(places), self.labels(places)

    def pixels(self, places: list[Place]) -> Tensor:
        images = _batch_memory(len(places), self._size)
        for at, (epoch, index) in enumerate(places):
            seed = seed_of(self._seed, epoch, index)
            images[at] = decode_on_cpu(self.encoded(index), self._size, self._augment, seed, self._source.where(index))
        return images

    def labels(self, places: list[Place]) -> Tensor:
        return self._source.labels[[index for _, index in places]]


class Divided(DecodedImages):
    """The same beside a device that has a share in it: of its images the bytes in one piece, where each ends, its seed.

    The order is: pixels of the first images, labels of all, then those three of the others, then the seconds that the
    pixels took.
    """

    def __init__(
        self, source: Encoded, size: int, augment: bool, seed: int, cache: ImageCache | None, share: DecodeShare
    ) -> None:
        super().__init__(source, size, augment, seed, cache)
        self._share = share

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        began = time.perf_counter()
        cut = len(places) - self._share.count(len(places))
        pixels = self.pixels(places[:cut])
        spent_s = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        parts = [self.encoded(index) for _, index in places[cut:]]
        data = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        ends = torch.tensor([len(part) for part in parts], dtype=torch.int64).cumsum(0)
        seeds = torch.tensor([seed_of(self._seed, epoch, index) for epoch, index in places[cut:]], dtype=torch.int64)
        return pixels, self.labels(places), data, ends, seeds, spent_s


def _batch_memory(images: int, size: int) -> Tensor:
    """Pixel by pixel, as images are resized and as convolutions want them; a worker's where the rank can read it.

    Handed over from a worker's own memory the batch would be copied once more.
    """
    if get_worker_info() is None or not images:
        memory = torch.empty(images * size * size * 3, dtype=torch.uint8)
    else:
        memory = torch.empty(0, dtype=torch.uint8)
        memory.set_(torch.UntypedStorage._new_shared(images * size * size * 3))
    return memory.view(images, size, size, 3).permute(0, 3, 1, 2)


class FileBatches:
    """Batches of (uint8 images, int64 labels). Closed by whoever opened it, as `HostBatches` are.

    With a decoder, a thread decodes or copies to the device before a batch is asked for; without one, batches are
    taken as the workers hand them over.
    """

    def __init__(
        self,
        loader: DataLoader[tuple[Tensor, ...]],
        decoder: Callable[[Iterator[tuple[Tensor, ...]]], DeviceDecoder] | None = None,
        share: DecodeShare | None = None,
    ) -> None:
        self.share = share
        self._batches: Iterator[tuple[Tensor, ...]] | None = iter(loader)
        self._ahead: Prefetcher[Ready] | None = None
        if decoder is not None:
            self._ahead = Prefetcher(decoder(self._batches))
            self._batches = None
            weakref.finalize(self, self._ahead.close)  # a batch that nobody takes must not keep the thread

    def __iter__(self) -> FileBatches:
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        if self._ahead is not None:
            return received(self._ahead.take())
        if self._batches is None:
            raise StopIteration
        return tuple(next(self._batches))

    def settle(self) -> None:
        """Wait until nothing of this is at work on the device, until the next batch is taken.

        A device graph cannot be captured while another thread uses the device.
        """
        if self._ahead is not None:
            self._ahead.settle()

    def close(self) -> None:
        """End the workers now: dropping the last reference to their iterator does it."""
        if self._ahead is not None:
            self._ahead.close()
        self._batches = None


def file_loader(
    dataset: Encoded,
    batch_size: int,
    *,
    workers: int,
    prefetch: int | None = 2,
    pin_memory: bool = False,
    decode: str = "cpu",
    augment: bool = True,
    cache: str = "off",
    image_size: int = 224,
    seed: int = 0,
    endless: bool = True,
    device: torch.device | str | None = None,
    sends: bool = False,
) -> FileBatches:
    """Batches from encoded images; the same for the same seed, however many workers there are.

    To train: without end, shuffled, whole batches, random crops. To evaluate (`endless=False, augment=False`): one
    pass in order, the last batch as it comes, centre crops. Normalising is left to the device. `sends`: a thread copies
    what the workers decoded to the device, so that no step waits for the copy.
    """
    if decode not in DECODERS:
        raise unknown("decode", decode, DECODERS)
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if decode != "cpu" and device is None:
        raise RequestError(f"decode={decode} needs a device")
    order = EpochOrder(len(dataset), batch_size, seed, endless)  # refuses before a cache is filled
    held = fill_cache(dataset) if cache == "memory" else None
    place = torch.device(device) if device is not None else None
    share = DecodeShare(DECODERS[decode], workers)
    given = (dataset, image_size, augment, seed, held)
    aside = place is not None and (decode != "cpu" or sends)
    loader = worker_loader(
        Divided(*given, share) if aside else DecodedImages(*given),
        order,
        workers,
        prefetch,
        pin_memory,
        timeout_s=MOMENT_S if workers and aside else 0,
    )
    if place is None or not aside:
        return FileBatches(loader)
    decoder = partial(DeviceDecoder, size=image_size, augment=augment, device=place, share=share)
    return FileBatches(loader, decoder, share)


def worker_loader(
    task: Dataset[tuple[Tensor, ...]],
    order: EpochOrder,
    workers: int,
    prefetch: int | None,
    pin_memory: bool,
    timeout_s: float = 0,
) -> DataLoader[tuple[Tensor, ...]]:
    """Worker processes that make whole batches by that order."""
    return DataLoader(
        task,
        batch_sampler=order,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=(prefetch or 2) if workers else None,
        pin_memory=pin_memory and torch.cuda.is_available(),
        timeout=timeout_s,
        # A forked worker sees the cache without a copy; it never touches the device.
        multiprocessing_context=workers_context() if workers else None,
    )


def _as_it_is(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return batch


def workers_context() -> str:
    """Forked where that is possible: a worker then sees what is held in memory without a copy."""
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
