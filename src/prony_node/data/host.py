"""Batches from host memory through a real DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prony_node.data.synthetic import Sampler

STOCK = 256  # distinct samples held in memory; an index beyond them comes round again
STOCK_BYTES = 2**30  # of large samples there are fewer
FEWEST = 32


class HostSamples(Dataset[tuple[Tensor, ...]]):
    """A data set of nominal length that serves samples from a stock made once."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        one = sampler(torch.Generator().manual_seed(seed), 1)
        self._count = max(FEWEST, min(STOCK, STOCK_BYTES // sum(tensor.nbytes for tensor in one)))
        self._stock = sampler(torch.Generator().manual_seed(seed), self._count)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index % self._count] for tensor in self._stock)


class HostBatches:
    """Batches without end. Closed by whoever opened it: workers left to the interpreter's exit end slowly."""

    def __init__(
        self,
        samples: Dataset[tuple[Tensor, ...]],
        batch_size: int,
        *,
        seed: int,
        workers: int,
        prefetch: int | None,
        pin_memory: bool,
    ) -> None:
        self._loader: DataLoader[tuple[Tensor, ...]] | None = DataLoader(
            samples,
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        self._epoch: Iterator[tuple[Tensor, ...]] | None = iter(self._loader)

    def __iter__(self) -> HostBatches:
        return self

    def __next__(self) -> tuple[Tensor, ...]:
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
