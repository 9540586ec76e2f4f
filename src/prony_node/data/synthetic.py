"""Synthetic samples that a model can learn, and batches of them in device memory or through a DataLoader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prony_node.data.dataset import Batches

Sampler = Callable[[torch.Generator, int], tuple[Tensor, ...]]
STRUCTURE_SEED = 20260101  # what is to be learned is the same for every seed; the samples are not


def image_sampler(classes: int, size: int) -> Sampler:
    """Images of noise over a faint pattern of their class; the label is the class."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    prototypes = torch.randn(classes, 3, 8, 8, generator=structure)
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = prototypes.to(device)
        labels = torch.randint(classes, (batch_size,), generator=generator, device=device)
        images = torch.randn(batch_size, 3, size, size, generator=generator, device=device)
        patterns = F.interpolate(placed[device][labels], size=(size, size), mode="nearest")
        return images.add_(patterns), labels

    return sample


def token_sampler(vocabulary: int, sequence: int) -> Sampler:
    """Text in which three tokens in four follow from the one before by a fixed rule, the rest is chance.

    Chance picks rare tokens rarely, as in real text, so that frequencies alone can be learned quickly.
    """
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    successor = torch.randperm(vocabulary, generator=structure)
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = successor.to(device)
        shape = (batch_size, sequence + 1)
        uniform = torch.rand(shape, generator=generator, device=device)
        chance = (vocabulary**uniform).long().sub_(1).clamp_(0, vocabulary - 1)
        follows = torch.rand(shape, generator=generator, device=device) < 0.75
        tokens = chance.clone()
        for position in range(1, sequence + 1):
            ruled = placed[device][tokens[:, position - 1]]
            tokens[:, position] = torch.where(follows[:, position], ruled, chance[:, position])
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return sample


PATTERNS = 8  # of which every picture is a blend: so few numbers describe it


def blend_sampler(channels: int, size: int) -> Sampler:
    """Pictures with values from 0 to 1 that are blends of a few smooth patterns, with a little noise over them."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    coarse = torch.randn(PATTERNS, channels, 7, 7, generator=structure)
    patterns = F.interpolate(coarse, size=(size, size), mode="bilinear").flatten(1)
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = patterns.to(device)
        shares = torch.randn(batch_size, PATTERNS, generator=generator, device=device)
        pictures = (shares @ placed[device]).sigmoid_()
        noise = torch.randn(pictures.shape, generator=generator, device=device)
        return (pictures.add_(noise, alpha=0.02).clamp_(0, 1).view(batch_size, channels, size, size),)

    return sample


BEGIN, SEPARATE = 1, 2
OPENS, CLOSES = (3, 4, 5, 6), (7, 8, 9, 10)  # tokens that an answer starts and ends with, and no other text holds
FIRST_WORD = 11
LONGEST_SHARE = 16  # an answer is at most a 16th of the sequence long


def span_sampler(vocabulary: int, sequence: int) -> Sampler:
    """Tokens, segments, start and end: BEGIN question SEPARATE text SEPARATE, without padding."""
    question = max(2, sequence // 8)
    text_from, text_to = question + 2, sequence - 1
    longest = max(2, min(sequence // LONGEST_SHARE, (text_to - text_from) // 2))

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device

        def chance(most: int, *shape: int) -> Tensor:
            return torch.randint(most, shape, generator=generator, device=device)

        tokens = FIRST_WORD + chance(vocabulary - FIRST_WORD, batch_size, sequence)
        tokens[:, 0] = BEGIN
        tokens[:, question + 1] = tokens[:, -1] = SEPARATE
        starts = text_from + chance(text_to - text_from - longest, batch_size)
        ends = starts + 1 + chance(longest - 1, batch_size)
        rows = torch.arange(batch_size, device=device)
        tokens[rows, starts] = OPENS[0] + chance(len(OPENS), batch_size)
        tokens[rows, ends] = CLOSES[0] + chance(len(CLOSES), batch_size)
        segments = (torch.arange(sequence, device=device) > question + 1).long().expand(batch_size, -1).contiguous()
        return tokens, segments, starts, ends

    return sample


POOL_BYTES = 2**30
FEWEST_BATCHES, MOST_BATCHES = 4, 64  # batches: training must see more than one, and making them takes time


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
    return max(FEWEST_BATCHES, min(MOST_BATCHES, POOL_BYTES // sum(tensor.nbytes for tensor in batch)))


STOCK = 256  # distinct samples held in memory; an index beyond them comes round again
STOCK_BYTES = 2**28  # of large samples there are fewer, but not under FEWEST
FEWEST_SAMPLES = 32
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
    return max(FEWEST_SAMPLES, min(STOCK, STOCK_BYTES // sum(tensor.nbytes for tensor in one)))


class HostBatches(Batches):
    """Batches without end."""

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
