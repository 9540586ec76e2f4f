"""Synthetic samples are the same for a seed, and hold structure that can be learned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prony_node.data.synthetic import Sampler, image_sampler, token_sampler


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("make", [lambda: image_sampler(10, 16), lambda: token_sampler(100, 12)])
def test_a_seed_gives_the_same_samples(make: object) -> None:
    one: Sampler = make()  # type: ignore[operator]
    two: Sampler = make()  # type: ignore[operator]
    first, again, other = one(generator(1), 8), two(generator(1), 8), one(generator(2), 8)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_images_have_their_shape_and_every_class() -> None:
    images, labels = image_sampler(10, 32)(generator(0), 500)
    assert images.shape == (500, 3, 32, 32)
    assert images.dtype == torch.float32
    assert set(labels.tolist()) == set(range(10))


def test_a_nearest_prototype_tells_the_class_of_an_image() -> None:
    sample = image_sampler(20, 32)
    images, labels = sample(generator(0), 800)
    prototypes = torch.stack([images[labels == number].mean(0) for number in range(20)])
    unseen, truth = sample(generator(1), 200)
    guess = torch.cdist(unseen.flatten(1), prototypes.flatten(1)).argmin(1)
    assert (guess == truth).float().mean() > 0.9  # chance: 0.05


def test_tokens_are_in_range_and_targets_are_the_next_token() -> None:
    for vocabulary in (2, 100, 50304):
        tokens, targets = token_sampler(vocabulary, 12)(generator(0), 64)
        assert tokens.shape == targets.shape == (64, 12)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert int(tokens.min()) >= 0
        assert int(targets.max()) < vocabulary
        assert tokens.is_contiguous()
        assert targets.is_contiguous()


def test_a_bigram_table_tells_most_next_tokens() -> None:
    vocabulary = 50
    sample = token_sampler(vocabulary, 64)
    tokens, targets = sample(generator(0), 300)
    pairs = tokens.flatten() * vocabulary + targets.flatten()
    table = torch.bincount(pairs, minlength=vocabulary**2).view(vocabulary, vocabulary)
    unseen, truth = sample(generator(1), 100)
    right = (table.argmax(1)[unseen] == truth).float().mean()
    assert 0.7 < right < 0.85  # three in four follow from the one before; chance alone would give 0.02


def test_frequencies_alone_say_something() -> None:
    tokens, _ = token_sampler(1024, 64)(generator(0), 200)
    share = torch.bincount(tokens.flatten(), minlength=1024).float() / tokens.numel()
    entropy = -(share[share > 0] * share[share > 0].log()).sum()
    uniform = F.cross_entropy(torch.zeros(1, 1024), torch.zeros(1, dtype=torch.long))
    assert entropy < 0.97 * uniform  # the loss can fall before a single pair is learned
