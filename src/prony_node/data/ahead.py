"""Decode batches on the device, or copy them to it, before the step asks for them; and how much the device decodes."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from prony_node.data.decode import decode_on_device

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


AHEAD = 2  # batches that lie ready
MOMENT_S = 0.25  # for which the loader is waited for before the thread looks whether it is still wanted
LEAVE_S = 10.0  # for which a thread that is to end is waited for: one that reads from a dead disk is left behind
Item = TypeVar("Item")
Divided = tuple[Tensor, ...]  # pixels, labels, bytes of the other images, their ends, seeds, a worker's seconds
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

    def settle(self) -> None:
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


class Source(Protocol):
    """A loader that can be closed."""

    def __next__(self) -> tuple[Tensor, ...]: ...
    def close(self) -> None: ...


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


class DeviceDecoder:
    """What the thread does: the next batch of a loader, decoded on the device, on a stream beside the step's.

    What the workers have decoded of it is copied there.
    """

    def __init__(
        self, batches: Iterator[Divided], size: int, augment: bool, device: torch.device, share: DecodeShare
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


class SentBatches:
    """Batches of a loader, sent by a thread on a stream beside the step's, before they are asked for."""

    def __init__(
        self, source: Source, send: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]], device: torch.device
    ) -> None:
        beside = SideStream(device)

        def make() -> Ready:
            batch = next(source)
            return beside.do(lambda: send(batch))

        self._source = source
        self._ahead: Prefetcher[Ready] = Prefetcher(make)
        weakref.finalize(self, self._ahead.close)

    def __iter__(self) -> SentBatches:
        return self

    def __next__(self) -> tuple[Tensor, ...]:
        return received(self._ahead.take())

    def settle(self) -> None:
        """Wait until nothing of this is at work on the device, until the next batch is taken."""
        self._ahead.settle()

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
