"""Synthetic samples with structure that can be learned, so that a training run can show that it trains."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

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
