"""Make batches, or copy them to the device, in a thread beside the step before it asks for them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from prony_node.contract.settings import Value
from prony_node.data.dataset import Batches

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
