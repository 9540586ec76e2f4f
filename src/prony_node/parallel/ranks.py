"""This rank among the others: what they tell each other, outside of the measured steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from prony_node.parallel.place import RankPosition

T = TypeVar("T")


class RankWord:
    """A number of the first rank, on its way to all."""

    def __init__(self, flag: torch.Tensor, work: dist.Work) -> None:
        self._flag, self._work = flag, work

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> int:
        """The number, once it is here."""
        self._work.wait()
        return int(self._flag.item())


class Ranks:
    """All ranks of a run. One alone has no process group, and each of these is then for nothing."""

    def __init__(self, place: RankPosition | None = None) -> None:
        self.place = place or RankPosition()
        self.backend: str | None = None  # of what the steps exchange
        self.timeout_s: float | None = None
        self._control: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return self.place.size

    @property
    def first(self) -> bool:
        return self.place.rank == 0

    def start(self, device: torch.device, timeout_s: float, exchanging: bool) -> None:
        """Meet the others. What they say to each other goes by a group on the host, apart from what steps exchange."""
        if self.size == 1:
            return
        os.environ["RANK"] = str(self.place.rank)  # counted by node, where the launcher counts by arrival
        backend = dist.get_default_backend_for_device(device) if exchanging else "gloo"
        dist.init_process_group(
            backend,
            rank=self.place.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if exchanging and device.type != "cpu" else None,
        )
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.backend, self.timeout_s = backend if exchanging else None, timeout_s

    def barrier(self) -> None:
        if self._control is not None:
            dist.barrier(self._control)

    @contextmanager
    def one_of_a_node_first(self) -> Iterator[None]:
        """Each node's first rank does this before its others: what it writes, they find."""
        if self.place.local_rank > 0:
            self.barrier()
        yield
        if self.place.local_rank == 0:
            self.barrier()

    def from_first(self, thing: T) -> T:
        """What the first rank has, for all."""
        if self._control is None:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def gathered(self, thing: T) -> list[T]:
        """What every rank has, in their order; for the first one alone, the others get nothing."""
        if self._control is None:
            return [thing]
        things: list[T] | None = [thing] * self.size if self.first else None
        dist.gather_object(thing, things, dst=0, group=self._control)
        return things or []

    def tell(self, number: int) -> RankWord:
        """Begin to bring the first rank's number to all, and do not wait for it."""
        assert self._control is not None
        flag = torch.tensor([number], dtype=torch.int64)
        work = dist.broadcast(flag, src=0, group=self._control, async_op=True)
        assert work is not None
        return RankWord(flag, work)

    def end(self) -> None:
        if self._control is not None:
            dist.destroy_process_group()
            self._control = None
