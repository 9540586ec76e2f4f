"""Batches from host memory through a real DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prony_node.data.synthetic import Sampler

STOCK = 256  # distinct samples held in memory; an index beyond them comes round again
STOCK_APART = 64  # of those that differ in shape: photographs, of some megabytes each
Sample = tuple[Tensor, ...]


class HostSamples(Dataset[tuple[Tensor, ...]]):
    """A data set of nominal length that serves samples from a stock made once."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        self._stock = sampler(torch.Generator().manual_seed(seed), STOCK)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index % STOCK] for tensor in self._stock)


class SamplesApart(Dataset[Sample]):
    """The same for samples of which each has a shape of its own; they are padded when they are put together."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._stock = [tuple(tensor[0] for tensor in sampler(generator, 1)) for _ in range(STOCK_APART)]
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return self._stock[index % STOCK_APART]


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
        collate: Callable[[Sequence[Sample]], Sample] | None = None,
    ) -> None:
        self._loader: DataLoader[tuple[Tensor, ...]] | None = DataLoader(
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
