"""Batches of a data set, without end to train or one pass over the test split; small sets held on the device.

And batches that a thread makes or sends beside the step, before it asks for them.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from prony_node.contract import RequestError
from prony_node.contract.settings import Value
from prony_node.data.dataset import Batch, Batches, DataSet, FileSet, Pixels
from prony_node.data.synthetic import HostBatches

# Mean and standard deviation of the training images, of 0 to 1, by channel.
# MNIST, Fashion-MNIST and CIFAR-10 are computed from the sets in the tests; CIFAR-100 and ImageNet as widely stated.
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
PADDING = 4  # pixels around an image before it is cropped at random, as for CIFAR since ResNet's paper


def normalise(images: Tensor, kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 images, wherever they lie, as numbers of mean 0 and deviation 1; unknown kinds take ImageNet's."""
    scale, shift = _scale_and_shift(kind, dtype, images.device)
    return torch.addcmul(shift, images.to(dtype), scale)


@lru_cache
def _scale_and_shift(kind: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Kept: to copy them to the device for each batch would make the host wait for it."""
    mean, deviation = STATISTICS.get(kind, STATISTICS["imagenet"])
    shape = (1, len(mean), 1, 1)
    scale = torch.tensor([1 / (255 * value) for value in deviation], dtype=dtype, device=device)
    shift = torch.tensor([-m / d for m, d in zip(mean, deviation, strict=True)], dtype=dtype, device=device)
    return scale.view(shape), shift.view(shape)


class MemoryBatches(Batches):
    """Batches of (uint8 images, int64 labels), without end to train, one pass in order to evaluate."""

    def __init__(
        self,
        dataset: Pixels,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        augment: bool = True,
        endless: bool = True,
        flip: bool = True,
        seed: int = 0,
    ) -> None:
        if batch_size < 1 or (endless and batch_size > len(dataset)):
            raise RequestError(f"batch_size={batch_size} does not fit a set of {len(dataset):,} samples")
        self._device = torch.device(device)
        self._images = dataset.images.to(self._device)
        self._labels = dataset.labels.to(self._device)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._batch_size = batch_size
        self._augment = augment
        self._flip = flip  # a mirrored digit is no digit: off for MNIST
        self._batches = self._forever() if endless else self._once()

    def __next__(self) -> tuple[Tensor, ...]:
        return next(self._batches)

    def close(self) -> None:
        self._batches = iter(())

    def _forever(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            order = torch.randperm(len(self._labels), generator=self._generator, device=self._device)
            for chosen in order.split(self._batch_size):
                if len(chosen) == self._batch_size:
                    yield self._batch(chosen)

    def _once(self) -> Iterator[tuple[Tensor, ...]]:
        for chosen in torch.arange(len(self._labels), device=self._device).split(self._batch_size):
            yield self._batch(chosen)

    def _batch(self, chosen: Tensor) -> tuple[Tensor, ...]:
        images = self._images[chosen]
        if self._augment:
            images = shifted(images, self._generator)
            if self._flip:
                images = mirrored(images, self._generator)
        return images, self._labels[chosen]


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to four pixels on either axis, what comes in being black."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    moves = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator, device=images.device)
    rows = moves[0] + torch.arange(height, device=images.device)
    columns = moves[1] + torch.arange(width, device=images.device)
    each = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    every = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[each, every, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


def mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every other image, by chance, left to right."""
    turn = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(turn, images.flip(-1), images)


WITHOUT_MIRROR = ("mnist",)  # a mirrored digit is no digit


def training_batches(
    dataset: DataSet, settings: dict[str, Value], samples: int, device: torch.device, seed: int
) -> Batches:
    """Shuffled, whole batches, as they lie: pixels as bytes, tokens as numbers."""
    if isinstance(dataset, Pixels) and settings["cache"] == "device":
        augment, mirror = bool(settings.get("augment")), dataset.kind not in WITHOUT_MIRROR
        return MemoryBatches(dataset, samples, device=device, augment=augment, flip=mirror, seed=seed)
    if isinstance(dataset, FileSet):
        return dataset.training_batches(settings, samples, device, seed)
    workers, pin = int(settings["workers"]), bool(settings["pin_memory"])
    prefetch = int(settings["prefetch"]) if "prefetch" in settings else None
    return HostBatches(dataset, samples, seed=seed, workers=workers, prefetch=prefetch, pin_memory=pin)


def evaluation_batches(dataset: DataSet, settings: dict[str, Value], samples: int, device: torch.device) -> Batches:
    """One pass in order, the last batch as it comes, nothing augmented."""
    if isinstance(dataset, Pixels):
        return MemoryBatches(dataset, samples, device=device, augment=False, endless=False)
    if isinstance(dataset, FileSet):
        return dataset.evaluation_batches(settings, samples, device)
    return OnePass(dataset, samples, int(settings["workers"]))


class OnePass(Batches):
    """A test split that is read sample by sample."""

    def __init__(self, dataset: DataSet, samples: int, workers: int) -> None:
        self._batches: Iterator[Batch] = map(tuple, DataLoader(dataset, batch_size=samples, num_workers=workers))

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


AHEAD = 2  # batches that lie ready
MOMENT_S = 0.25  # for which the loader is waited for before the thread looks whether it is still wanted
LEAVE_S = 10.0  # for which a thread that is to end is waited for: one that reads from a dead disk is left behind
Item = TypeVar("Item")
Ready = tuple[tuple[Tensor, ...], Any]  # a batch, and the event after which it may be read; None on a CPU


class Prefetcher(Generic[Item]):
    """Calls `make` in a thread of its own and holds what it gives, in that order, `depth` of them at most.

    `make` may give None when nothing came for a moment. What it raises reaches whoever takes.
    """

    def __init__(self, make: Callable[[], Item | None], depth: int = AHEAD) -> None:
        self._make = make
        self._depth = depth
        self._ready: deque[Item] = deque()
        self._end: BaseException | None = None  # why nothing more will come; StopIteration when all is well
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._fill, name="prony-ahead", daemon=True)
        self._thread.start()

    def take(self) -> Item:
        """The next one, waited for."""
        with self._change:
            self._change.wait_for(lambda: self._ready or self._end is not None)
            if not self._ready:
                assert self._end is not None
                raise self._end
            item = self._ready.popleft()
            self._change.notify_all()
            return item

    def wait_until_idle(self) -> None:
        """Wait until the thread has nothing to do; that lasts until the next one is taken."""
        with self._change:
            self._change.wait_for(lambda: len(self._ready) >= self._depth or self._end is not None)

    def close(self) -> None:
        """End the thread, and tell whoever waits that nothing comes."""
        with self._change:
            self._end = StopIteration()
            self._ready.clear()
            self._change.notify_all()
        if self._thread is not threading.current_thread():  # an object may be collected in any thread
            self._thread.join(LEAVE_S)

    def _fill(self) -> None:
        while self._has_room():
            try:
                self._add(self._make())
            except BaseException as error:
                self._stop(error)
        del self._make  # with it go the loader and its workers

    def _has_room(self) -> bool:
        with self._change:
            self._change.wait_for(lambda: len(self._ready) < self._depth or self._end is not None)
            return self._end is None

    def _add(self, item: Item | None) -> None:
        with self._change:
            if item is not None and self._end is None:
                self._ready.append(item)
                self._change.notify_all()

    def _stop(self, reason: BaseException) -> None:
        with self._change:
            if self._end is None:
                self._end = reason
            self._change.notify_all()


class SideStream:
    """A stream beside the step's, where the device has streams."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, None
        if device.type == "cuda":
            # Looked up here: in another thread another device may be the current one.
            self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            # Its kernels are many and small, and would each queue behind a large one of the step.
            self._stream = torch.cuda.Stream(self.device, priority=-1)

    def do(self, work: Callable[[], tuple[Tensor, ...]]) -> Ready:
        """What `work` puts on the device, on that stream."""
        if self._stream is None:
            return work(), None
        with torch.cuda.stream(self._stream):
            return work(), self._stream.record_event()


def sends_beside(settings: dict[str, Value], device: torch.device) -> bool:
    """Whether a thread copies batches beside the step: on a GPU, where workers load them; only preset=fast has one."""
    return device.type == "cuda" and settings.get("preset") == "fast" and int(settings["workers"]) > 0


class SentBatches(Batches):
    """Batches of a loader, sent by a thread on a stream beside the step's, before they are asked for."""

    def __init__(
        self, source: Batches, send: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]], device: torch.device
    ) -> None:
        beside = SideStream(device)

        def make() -> Ready:
            batch = next(source)
            return beside.do(lambda: send(batch))

        self._source = source
        self._ahead: Prefetcher[Ready] = Prefetcher(make)
        weakref.finalize(self, self._ahead.close)

    def __next__(self) -> tuple[Tensor, ...]:
        return received(self._ahead.take())

    def wait_until_idle(self) -> None:
        self._ahead.wait_until_idle()

    def close(self) -> None:
        self._ahead.close()
        self._source.close()


def received(ready: Ready) -> tuple[Tensor, ...]:
    """The batch, for work that whoever asks puts on its current stream from now on."""
    batch, event = ready
    if event is not None:
        stream = torch.cuda.current_stream(batch[0].device)
        stream.wait_event(event)
        for tensor in batch:
            tensor.record_stream(stream)  # made on another: its memory must not go back before this one has read it
    return batch
