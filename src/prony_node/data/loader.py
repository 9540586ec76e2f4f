"""Batches of images from files: read, decoded, augmented and stacked by workers or on the device, ahead of the step."""

from __future__ import annotations

import math
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.contract.settings import Value
from prony_node.data.batches import MOMENT_S, Prefetcher, Ready, SideStream, received, sends_beside
from prony_node.data.dataset import Batches, FileSet, Origin, as_tensor

# From the bytes of an image to pixels of one size: decoding, cropping and resizing, on the CPU or on the device.


AREA = (0.08, 1.0)  # share of an image that a random crop takes, and its aspect: Inception's (Szegedy et al. 2014)
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
ATTEMPTS = 10
EVALUATED_SHARE = 0.875  # of the shorter side that a centre crop keeps: 224 of 256
UNNAMED = "an image"  # in a sentence, where its file is not known
GROUP = 64  # images that a device crops together: enough to launch little, not so many that floats fill its memory


@dataclass(frozen=True)
class Crop:
    top: int
    left: int
    height: int
    width: int
    flip: bool


def seed_of(seed: int, epoch: int, index: int) -> int:
    """One number for one sample of one epoch, so that the same crop is drawn whichever worker draws it."""
    return hash((seed, epoch, index)) & (2**63 - 1)


def random_crop(height: int, width: int, generator: torch.Generator) -> Crop:
    """A random part of random aspect, mirrored by chance."""
    flip, *chances = torch.rand(1 + 4 * ATTEMPTS, generator=generator, dtype=torch.float64).tolist()
    for attempt in range(ATTEMPTS):
        area, aspect, at_row, at_column = chances[4 * attempt : 4 * attempt + 4]
        pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = math.exp(LOG_ASPECT[0] + aspect * (LOG_ASPECT[1] - LOG_ASPECT[0]))
        wide, high = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top, left = int(at_row * (height - high + 1)), int(at_column * (width - wide + 1))
            return Crop(top, left, high, wide, flip < 0.5)
    side = min(height, width)
    return Crop((height - side) // 2, (width - side) // 2, side, side, flip < 0.5)


def centre_crop(height: int, width: int) -> Crop:
    """The middle of an image, as after a resize of its shorter side to 256 of 224."""
    side = max(1, round(EVALUATED_SHARE * min(height, width)))
    return Crop((height - side) // 2, (width - side) // 2, side, side, False)


def crop_for(height: int, width: int, augment: bool, seed: int) -> Crop:
    if not augment:
        return centre_crop(height, width)
    return random_crop(height, width, torch.Generator().manual_seed(seed))


def decode_on_cpu(data: Tensor, size: int, augment: bool, seed: int, where: str = UNNAMED) -> Tensor:
    """uint8, 3 x size x size."""
    image = decoded(data, where)
    crop = crop_for(image.shape[-2], image.shape[-1], augment, seed)
    # Pixel by pixel, as it was decoded, and not plane by plane: torch resizes bytes faster so (benchmarks/decode.py).
    part = cut(image, crop).contiguous(memory_format=torch.channels_last)
    part = F.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
    return part.flip(-1) if crop.flip else part


def cut(image: Tensor, crop: Crop) -> Tensor:
    """That part of an image, as a batch of one."""
    return image[None, :, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]


def decoded(data: Tensor, where: str = UNNAMED) -> Tensor:
    """uint8, 3 x height x width; grey becomes three colours, and what shines through is left out."""
    image = _pixels(data, where, "RGB")
    if image.dtype != torch.uint8:
        raise RequestError(f"{where} has 16 bits a colour: expected 8")
    return image


def decoded_as_it_is(data: Tensor, where: str) -> Tensor:
    """Channels x height x width, with the channels and bits that the file has."""
    return _pixels(data, where, "UNCHANGED")


def _pixels(data: Tensor, where: str, mode: str) -> Tensor:
    from torchvision.io import ImageReadMode, decode_image

    try:
        return decode_image(data, ImageReadMode[mode])
    except RuntimeError as error:
        first = str(error).split("\n", 1)[0]
        raise RequestError(f"{where} ({len(data):,} bytes) cannot be decoded: {first}") from error


def decode_on_device(
    images: Sequence[Tensor], size: int, augment: bool, seeds: Sequence[int], device: torch.device
) -> Tensor:
    """A batch of encoded images decoded, cropped and resized on the device: uint8, n x 3 x size x size."""
    whole = _decoded_on(images, device)
    shape = (len(whole), 3, size, size)
    batch = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    for at in range(0, len(whole), GROUP):
        chosen = slice(at, at + GROUP)
        batch[chosen] = _cropped(whole[chosen], size, augment, seeds[chosen])
    if device.type == "cuda":
        # torchvision decodes on a stream of its own, which does not wait for this one: an image whose memory is given
        # back while this stream has yet to read it would be overwritten by the next that is decoded.
        done = torch.cuda.current_stream(device).record_event(torch.cuda.Event(blocking=True))
        done.synchronize()
    return batch


def _cropped(images: Sequence[Tensor], size: int, augment: bool, seeds: Sequence[int]) -> Tensor:
    """Two kernels for each image, to make floats of its part and to resize that, and a few for all of them."""
    crops = [
        crop_for(image.shape[-2], image.shape[-1], augment, seed) for image, seed in zip(images, seeds, strict=True)
    ]
    parts = [
        F.interpolate(cut(image, crop).float(), (size, size), mode="bilinear", antialias=True)
        for image, crop in zip(images, crops, strict=True)
    ]
    every = torch.cat(parts)
    mirrored = torch.tensor([crop.flip for crop in crops], device=every.device).view(-1, 1, 1, 1)
    return torch.where(mirrored, every.flip(-1), every).add_(0.5).clamp_(0, 255)


def _decoded_on(images: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """By the device's own decoder all at once; one that it cannot take (a PNG, four colours) by the CPU."""
    if device.type != "cuda":
        return [decoded(data).to(device) for data in images]
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        found: Any = decode_jpeg(list(images), mode=ImageReadMode.RGB, device=device)
        return list(found)
    except RuntimeError:
        return [_one_on_device(data, device) for data in images]


def _one_on_device(data: Tensor, device: torch.device) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        found: Tensor = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
        return found
    except RuntimeError:
        return decoded(data).to(device)


# Decode batches on the device, or copy them to it, before the step asks for them; and how much the device decodes.


FIRST = 0.25  # of decode=both, until both sides were seen at work
LEAST, MOST = 1 / 32, 31 / 32  # a side with nothing to do has no speed to be seen
KEPT = 0.9  # of what was known of a speed, when another batch was seen


class DecodeShare:
    """The part of every batch that is left to the device; seen by the workers as it changes.

    Two sides that work beside each other are done at the same time when each has a part by its speed. Neither speed
    depends much on the parts, so that there is nothing to swing. Where the step is slower than both, nothing waits.
    """

    def __init__(self, part: float | None, workers: int = 1) -> None:
        """`part` stays as it is; None is found out."""
        self._fixed = part is not None
        self._workers = max(1, workers)
        # In memory that processes share, whether they are forked or not.
        self._part = torch.tensor([FIRST if part is None else part], dtype=torch.float64).share_memory_()
        self._seconds: dict[str, float] = {}  # for an image, of all workers together and of the device

    @property
    def part(self) -> float:
        return float(self._part)

    @property
    def found(self) -> float | None:
        """The part, where it was not given."""
        return None if self._fixed else self.part

    def count(self, images: int) -> int:
        """How many of so many images the device decodes."""
        count = round(self.part * images)
        return count if self._fixed or images < 2 else min(images - 1, max(1, count))

    def saw(self, by_workers: int, worker_s: float, by_device: int, device_s: float) -> None:
        """How long one worker took for its images, and the device for the others of the batch."""
        if self._fixed or not by_workers or not by_device:
            return
        self._note("workers", worker_s / by_workers / self._workers)
        self._note("device", device_s / by_device)
        wanted = self._seconds["workers"] / max(sum(self._seconds.values()), 1e-12)
        self._part.fill_(min(MOST, max(LEAST, wanted)))

    def _note(self, side: str, seconds: float) -> None:
        known = self._seconds.get(side, seconds)
        self._seconds[side] = KEPT * known + (1 - KEPT) * seconds


class DeviceDecoder:
    """What the thread does: the next batch of a loader, decoded on the device, on a stream beside the step's.

    What the workers have decoded of it is copied there.
    """

    def __init__(
        self, batches: Iterator[tuple[Tensor, ...]], size: int, augment: bool, device: torch.device, share: DecodeShare
    ) -> None:
        self._batches, self._size, self._augment, self._device = batches, size, augment, device
        self._share = share
        self._beside = SideStream(device)
        self._device = self._beside.device

    def __call__(self) -> Ready | None:
        try:
            batch = next(self._batches)
        except RuntimeError as error:
            if str(error).startswith("DataLoader timed out"):  # after MOMENT_S; asked again, it waits on
                return None
            raise
        return self._beside.do(lambda: self._placed(*batch))

    def _placed(
        self, pixels: Tensor, labels: Tensor, data: Tensor, ends: Tensor, seeds: Tensor, worker_s: Tensor
    ) -> tuple[Tensor, ...]:
        here = labels.to(self._device, non_blocking=True)
        parts = [pixels.to(self._device, non_blocking=True)] if len(pixels) else []
        if len(ends):
            began = time.perf_counter()
            images = data.tensor_split(ends[:-1])
            parts.append(decode_on_device(images, self._size, self._augment, seeds.tolist(), self._device))
            self._share.saw(len(pixels), float(worker_s), len(ends), time.perf_counter() - began)
        return torch.cat(parts) if len(parts) > 1 else parts[0], here


# Batches of images from files, read, decoded, augmented and stacked by worker processes, with a cache in memory.


class ImageReader(Protocol):
    """One image's bytes, and where they lie, for a sentence."""

    def read(self, index: int) -> bytes: ...
    def where(self, index: int) -> str: ...


@dataclass(frozen=True)
class FileReader:
    """Images that lie in a file each."""

    files: Sequence[Path]

    def read(self, index: int) -> bytes:
        try:
            return self.files[index].read_bytes()
        except OSError as error:
            raise RequestError(f"{self.where(index)} was there when the set was opened: {error.strerror}") from error

    def where(self, index: int) -> str:
        return str(self.files[index])


class Encoded(FileSet):
    """Images as they lie on disk, to be decoded by the loader."""

    encoded_bytes: int

    def __init__(
        self, origin: Origin, classes: Sequence[str], labels: Tensor, reader: ImageReader, encoded_bytes: int
    ) -> None:
        super().__init__(origin, classes, labels)
        self.read, self.where = reader.read, reader.where
        self.encoded_bytes = encoded_bytes  # of all samples together; an estimate where there are very many files

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return as_tensor(self.read(index)), self.labels[index]

    def subset(self, indices: Tensor) -> Encoded:
        places = indices.tolist()
        size = round(self.encoded_bytes * len(places) / len(self))
        return Encoded(self.origin, self.classes, self.labels[indices], ChosenReader(self, places), size)

    def training_batches(self, settings: dict[str, Value], samples: int, device: torch.device, seed: int) -> Batches:
        return file_loader(
            self,
            samples,
            workers=int(settings["workers"]),
            prefetch=int(settings["prefetch"]) if "prefetch" in settings else None,
            pin_memory=bool(settings["pin_memory"]),
            decode=str(settings["decode"]),
            augment=bool(settings.get("augment")),
            cache=str(settings["cache"]),
            image_size=int(settings["image_size"]),
            seed=seed,
            device=device,
            sends=sends_beside(settings, device),
        )

    def evaluation_batches(self, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
        return file_loader(
            self,
            samples,
            workers=int(settings["workers"]),
            pin_memory=bool(settings["pin_memory"]),
            decode="cpu" if settings["decode"] == "both" else str(settings["decode"]),  # one judge for all
            augment=False,
            image_size=int(settings["image_size"]),
            endless=False,
            device=device,
        )


@dataclass(frozen=True)
class ChosenReader:
    """Some of the images that another reads."""

    reader: ImageReader
    places: list[int]

    def read(self, index: int) -> bytes:
        return self.reader.read(self.places[index])

    def where(self, index: int) -> str:
        return self.reader.where(self.places[index])


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


class FileBatches(Batches):
    """Batches of (uint8 images, int64 labels).

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

    def __next__(self) -> tuple[Tensor, ...]:
        if self._ahead is not None:
            return received(self._ahead.take())
        if self._batches is None:
            raise StopIteration
        return tuple(next(self._batches))

    @property
    def decoded_on_device(self) -> float | None:
        return self.share.found if self.share else None

    def wait_until_idle(self) -> None:
        if self._ahead is not None:
            self._ahead.wait_until_idle()

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
