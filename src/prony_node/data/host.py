"""Batches from host memory through a real DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prony_node.data.synthetic import Sampler

STOCK = 256  # distinct samples held in memory; an index beyond them comes round again
STOCK_BYTES = 2**28  # of large samples there are fewer, but not under FEWEST
FEWEST = 32
Sample = tuple[Tensor, ...]


class HostSamples(Dataset[Sample]):
    """A data set of nominal length that serves samples from a stock made once."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        self._stock = sampler(torch.Generator().manual_seed(seed), stock_size(sampler, seed))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return tuple(tensor[index % len(tensor)] for tensor in self._stock)


class SamplesApart(Dataset[Sample]):
    """The same for samples of which each has a shape of its own; they are padded when they are put together."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        generator, count = torch.Generator().manual_seed(seed), stock_size(sampler, seed)
        self._stock = [tuple(tensor[0] for tensor in sampler(generator, 1)) for _ in range(count)]
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return self._stock[index % len(self._stock)]


def stock_size(sampler: Sampler, seed: int) -> int:
    one = sampler(torch.Generator().manual_seed(seed), 1)
    return max(FEWEST, min(STOCK, STOCK_BYTES // sum(tensor.nbytes for tensor in one)))


class HostBatches:
    """Batches without end. Closed by whoever opened it: workers left to the interpreter's exit end slowly."""

    def __init__(
        self,
        samples: Dataset[Sample],
        batch_size: int,
        *,
        seed: int,
        workers: int,
        prefetch: int | None,
        pin_memory: bool,
        collate: Callable[[Sequence[Sample]], Sample] | None = None,
    ) -> None:
        self._loader: DataLoader[Sample] | None = DataLoader(
            samples,
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            pin_memory=pin_memory,
            collate_fn=collate,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        self._epoch: Iterator[Sample] | None = iter(self._loader)

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> Sample:
        assert self._loader is not None
        assert self._epoch is not None
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._loader)
            batch = next(self._epoch)
        return tuple(batch)

    def close(self) -> None:
        """End the workers now: dropping the last reference to their iterator does it."""
        self._epoch = self._loader = None
