"""The collective operations, each on buffers of its own, and whether it gave the right answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from prony_node.contract.errors import RequestError
from prony_node.workloads.collective_config import WIDTHS, parse_size

if TYPE_CHECKING:
    from prony_node.contract.settings import Value

ELEMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AT_ONCE = 2**24  # elements that are looked at at once, so that looking takes no memory that matters
# Numbers below 2^8 are exact in every precision; primes, so that a part in a wrong place shows.
OF_PLACES, OF_RANKS = 127, 61


class Collective(ABC):
    """One operation between all ranks. `size` is what nccl-tests calls so, in bytes."""

    def __init__(self, size: int, precision: str, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device, self.dtype = device, ELEMENTS[precision]
        self.part = size // WIDTHS[precision] // self.ranks  # elements of a rank's part
        self.size = self.part * self.ranks * WIDTHS[precision]
        self.sent, self.received = self.buffers()

    @abstractmethod
    def buffers(self) -> tuple[Tensor, Tensor]:
        """What this rank gives, and where it receives; one and the same where the operation works in place."""

    @abstractmethod
    def run(self) -> None:
        """The operation: done, or waiting on the current stream, when this returns."""

    @abstractmethod
    def expected(self, places: Tensor) -> Tensor:
        """What must lie at these places of `received` when every rank gave `given`."""

    def given(self, places: Tensor, rank: int | Tensor) -> Tensor:
        """What a rank gives at these places for the answer to be looked at."""
        return (places + 17 * rank) % OF_PLACES

    def renew(self) -> None:
        """Numbers to time with, before a block of operations: where none of them changes, those that are there."""
        return

    def is_right(self) -> bool:
        """Do it once with numbers whose answer is known, and look at every element."""
        if self.received is not self.sent:
            self.received.fill_(-1)
        self._each(self.sent, lambda part, places: part.copy_(self.given(places, self.rank)))
        self.run()
        wrong = torch.zeros((), device=self.device, dtype=torch.int64)
        self._each(self.received, lambda part, places: wrong.add_((part != self.expected(places).to(part)).sum()))
        return int(wrong) == 0

    def _each(self, buffer: Tensor, do: Callable[[Tensor, Tensor], object]) -> None:
        for at, part in enumerate(buffer.split(AT_ONCE)):
            do(part, torch.arange(at * AT_ONCE, at * AT_ONCE + len(part), device=self.device))

    def _empty(self, elements: int) -> Tensor:
        return torch.rand(elements, device=self.device).to(self.dtype)


class AllReduce(Collective):
    """In place, as torch offers it."""

    def buffers(self) -> tuple[Tensor, Tensor]:
        buffer = self._empty(self.part * self.ranks)
        self.fresh = buffer[:AT_ONCE].clone()
        return buffer, buffer

    def run(self) -> None:
        dist.all_reduce(self.sent)

    def given(self, places: Tensor, rank: int | Tensor) -> Tensor:
        # One rank gives at each place, so that the sum is exact over any number of them.
        return torch.where(places % self.ranks == rank, 1 + places % OF_RANKS, 0)

    def expected(self, places: Tensor) -> Tensor:
        return 1 + places % OF_RANKS

    def renew(self) -> None:
        # A sum in place grows with each operation; a block later it may be infinite.
        for part in self.sent.split(AT_ONCE):
            part.copy_(self.fresh[: len(part)])


class ReduceScatter(Collective):
    def buffers(self) -> tuple[Tensor, Tensor]:
        return self._empty(self.part * self.ranks), self._empty(self.part)

    def run(self) -> None:
        dist.reduce_scatter_tensor(self.received, self.sent)

    def given(self, places: Tensor, rank: int | Tensor) -> Tensor:
        return torch.where(places % self.ranks == rank, 1 + places % OF_RANKS, 0)

    def expected(self, places: Tensor) -> Tensor:
        return 1 + (places + self.rank * self.part) % OF_RANKS


class AllGather(Collective):
    def buffers(self) -> tuple[Tensor, Tensor]:
        return self._empty(self.part), self._empty(self.part * self.ranks)

    def run(self) -> None:
        dist.all_gather_into_tensor(self.received, self.sent)

    def expected(self, places: Tensor) -> Tensor:
        return self.given(places % self.part, places // self.part)


class AllToAll(Collective):
    def buffers(self) -> tuple[Tensor, Tensor]:
        whole = self.part * self.ranks
        return self._empty(whole), self._empty(whole)

    def run(self) -> None:
        dist.all_to_all_single(self.received, self.sent)

    def expected(self, places: Tensor) -> Tensor:
        return self.given(self.rank * self.part + places % self.part, places // self.part)


class Broadcast(Collective):
    """From rank 0; all others receive in place."""

    def buffers(self) -> tuple[Tensor, Tensor]:
        buffer = self._empty(self.part * self.ranks)
        return buffer, buffer

    def run(self) -> None:
        dist.broadcast(self.sent, 0)

    def expected(self, places: Tensor) -> Tensor:
        return self.given(places, 0)


class SendReceive(Collective):
    """Each rank sends to the next and receives from the one before, at once."""

    def buffers(self) -> tuple[Tensor, Tensor]:
        whole = self.part * self.ranks
        return self._empty(whole), self._empty(whole)

    def run(self) -> None:
        both = [
            dist.P2POp(dist.isend, self.sent, (self.rank + 1) % self.ranks),
            dist.P2POp(dist.irecv, self.received, (self.rank - 1) % self.ranks),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def expected(self, places: Tensor) -> Tensor:
        return self.given(places, (self.rank - 1) % self.ranks)


MAKERS: dict[str, type[Collective]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reducescatter": ReduceScatter,
    "alltoall": AllToAll,
    "broadcast": Broadcast,
    "sendrecv": SendReceive,
}


def make_collective(name: str, size: int, settings: dict[str, Value], device: torch.device) -> Collective:
    """The operation of that name for a message of about this size: what the ranks divide evenly."""
    return MAKERS[name](size, str(settings["precision"]), device)


def refuse_unoffered(name: str, settings: dict[str, Value], device: torch.device) -> None:
    """Try it once: not every communication library has every operation, and then there is a sentence, not a number."""
    try:
        make_collective(name, parse_size(settings["smallest"]), settings, device).run()
    except (RuntimeError, NotImplementedError) as error:
        words = str(error).lower()
        if "not support" in words or "not implement" in words or "unsupported" in words:
            backend = dist.get_backend()
            raise RequestError(
                f"{backend}, the communication library of {device.type}, has no {name} in torch {torch.__version__}: "
                f"{str(error).splitlines()[0][:200]}"
            ) from error
        raise


def gather(values: tuple[float, ...], device: torch.device) -> list[tuple[float, ...]]:
    """These numbers of every rank, the same list on each of them; waits for all."""
    own = torch.tensor(values, dtype=torch.float64, device=device)
    every = torch.empty(dist.get_world_size() * len(values), dtype=torch.float64, device=device)
    dist.all_gather_into_tensor(every, own)
    return [tuple(row) for row in every.view(-1, len(values)).tolist()]
