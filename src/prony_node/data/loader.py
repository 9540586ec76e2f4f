"""Batches of images from files: read, decoded, augmented and stacked by worker processes."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.data.ahead import MOMENT_S, Ahead, DeviceDecoder, Ready, received
from prony_node.data.dataset import Encoded, as_tensor
from prony_node.data.decode import decode_on_cpu, seed_of

DECODERS = ("cpu", "device")
CACHES = ("off", "memory")
MEMORY_SHARE = 0.8  # of what is free, that a cache may take
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


class Decoded(Dataset[tuple[Tensor, ...]]):
    """What a worker does with one sample: read it, decode it, crop it."""

    def __init__(self, source: Encoded, size: int, augment: bool, seed: int, cache: Cache | None) -> None:
        self._source, self._size, self._augment, self._seed, self._cache = source, size, augment, seed, cache

    def encoded(self, index: int) -> Tensor:
        return self._cache.read(index) if self._cache else as_tensor(self._source.read(index))

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        images = torch.empty((len(places), 3, self._size, self._size), dtype=torch.uint8)
        for at, (epoch, index) in enumerate(places):
            seed = seed_of(self._seed, epoch, index)
            images[at] = decode_on_cpu(self.encoded(index), self._size, self._augment, seed)
        return images, self._source.labels[[index for _, index in places]]


class Undecoded(Decoded):
    """The same for a device that decodes: the bytes of a batch in one piece, where each ends, and its seed."""

    def __getitems__(self, places: list[Place]) -> tuple[Tensor, ...]:
        parts = [self.encoded(index) for _, index in places]
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        seeds = torch.tensor([seed_of(self._seed, epoch, index) for epoch, index in places])
        return torch.cat(parts), self._source.labels[[index for _, index in places]], ends, seeds


@dataclass(frozen=True)
class Cache:
    """Every image's bytes in one piece of memory, read once before the workers start and seen by all of them."""

    data: Tensor
    ends: list[int]

    def read(self, index: int) -> Tensor:
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]


def fill_cache(source: Encoded) -> Cache:
    free = _free_memory_bytes()
    if free is not None and source.encoded_bytes > MEMORY_SHARE * free:
        raise RequestError(
            f"cache=memory would hold {source.encoded_bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free here"
        )
    data, ends = bytearray(), []
    for index in range(len(source)):
        data += source.read(index)
        ends.append(len(data))
    return Cache(torch.frombuffer(data, dtype=torch.uint8), ends)


class FileBatches:
    """Batches of (uint8 images, int64 labels). Closed by whoever opened it, as `HostBatches` are.

    With a device, a thread decodes there before a batch is asked for; without one, the workers have decoded.
    """

    def __init__(
        self,
        loader: DataLoader[tuple[Tensor, ...]],
        size: int = 0,
        augment: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self._batches: Iterator[tuple[Tensor, ...]] | None = iter(loader)
        self._ahead: Ahead[Ready] | None = None
        if device is not None:
            self._ahead = Ahead(DeviceDecoder(self._batches, size, augment, device))
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
) -> FileBatches:
    """Batches from encoded images; the same for the same seed, however many workers there are.

    To train: without end, shuffled, whole batches, random crops. To evaluate (`endless=False, augment=False`): one
    pass in order, the last batch as it comes, centre crops. Normalising is left to the device.
    """
    if decode not in DECODERS:
        raise unknown("decode", decode, DECODERS)
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if decode == "device" and device is None:
        raise RequestError("decode=device needs a device")
    order = EpochOrder(len(dataset), batch_size, seed, endless)  # refuses before a cache is filled
    held = fill_cache(dataset) if cache == "memory" else None
    task = Decoded if decode == "cpu" else Undecoded
    loader = worker_loader(
        task(dataset, image_size, augment, seed, held),
        order,
        workers,
        prefetch,
        pin_memory,
        timeout_s=MOMENT_S if workers and decode == "device" else 0,
    )
    return FileBatches(loader, image_size, augment, torch.device(device) if decode == "device" and device else None)


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
