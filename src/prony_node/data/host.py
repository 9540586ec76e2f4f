"""Batches from host memory through a real DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prony_node.data.synthetic import Sampler

STOCK = 256  # distinct samples held in memory; an index beyond them comes round again


class HostSamples(Dataset[tuple[Tensor, ...]]):
    """A data set of nominal length that serves samples from a stock made once."""

    def __init__(self, sampler: Sampler, length: int, seed: int) -> None:
        self._stock = sampler(torch.Generator().manual_seed(seed), STOCK)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index % STOCK] for tensor in self._stock)


def host_batches(
    sampler: Sampler,
    batch_size: int,
    *,
    length: int,
    seed: int,
    workers: int,
    prefetch: int | None,
    pin_memory: bool,
) -> tuple[Iterator[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """Batches without end, and the loader behind them."""
    loader = DataLoader(
        HostSamples(sampler, max(length, 2 * batch_size), seed),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )

    def endless() -> Iterator[tuple[Tensor, ...]]:
        while True:
            for batch in loader:
                yield tuple(batch)

    return endless(), loader
