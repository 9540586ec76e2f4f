"""Batches that lie in device memory, coming round again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from prony_node.data.synthetic import Sampler

POOL_BYTES = 2**30
FEWEST, MOST = 4, 64  # batches: training must see more than one, and making them takes time


def device_batches(
    sampler: Sampler,
    place: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    samples: int,
    *,
    device: torch.device,
    seed: int,
    apart: bool = False,
) -> Iterator[tuple[Tensor, ...]]:
    """A cycle over a pool of batches; `place` gives each the precision and layout that the step takes.

    `apart`: no two batches have one shape, so that each is drawn by itself.
    """
    generator = torch.Generator(device).manual_seed(seed)
    pool = [place(sampler(generator, samples))]
    count = pool_size(pool[0])
    if apart:
        return itertools.cycle(pool + [place(sampler(generator, samples)) for _ in range(count - 1)])
    rest = sampler(generator, (count - 1) * samples)  # at once: a sampler may take as long for one as for many
    pool += [place(batch) for batch in zip(*(tensor.split(samples) for tensor in rest), strict=True)]
    return itertools.cycle(pool)


def pool_size(batch: tuple[Tensor, ...]) -> int:
    """How many batches like this one a pool holds."""
    return max(FEWEST, min(MOST, POOL_BYTES // sum(tensor.nbytes for tensor in batch)))
