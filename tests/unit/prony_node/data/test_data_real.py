"""The real sets, as packages bring them, are read for what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prony_node.contract import RequestError
from prony_node.data.batches import STATISTICS, MemoryBatches, normalise
from prony_node.data.dataset import Pixels
from prony_node.data.source import open_dataset
from prony_node.data.texts import Packed

Folder = Callable[[str], Path]
# How many training images each class has, as the sets' own papers and pages state.
COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
    "cifar10": [5000] * 10,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_real_set_is_recognised_whole_with_its_labels(real_data: Folder, name: str) -> None:
    train = open_dataset(real_data(name))
    assert isinstance(train, Pixels)
    assert (train.kind, train.class_count) == (name, 10)
    assert train.labels.bincount().tolist() == COUNTS[name]
    side = 32 if name == "cifar10" else 28
    assert train.images.shape == (len(train), 3 if name == "cifar10" else 1, side, side)
    # The stated statistics are this set's: wrong channels or a wrong order of bytes would not give them.
    mean, deviation = STATISTICS[name]
    images = train.images.float() / 255
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor(mean), atol=2e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor(deviation), atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", COUNTS)
def test_the_test_split_is_another(real_data: Folder, name: str) -> None:
    test = open_dataset(real_data(name), name, "test")
    assert isinstance(test, Pixels)
    assert len(test) == 10_000
    assert test.fingerprint() == open_dataset(real_data(name), split="test").fingerprint()
    assert abs(float(normalise(test.images, name).mean())) < 0.05


@pytest.mark.parametrize(("name", "accuracy"), [("mnist", 0.85), ("fashion-mnist", 0.75), ("cifar10", 0.25)])
def test_labels_belong_to_their_images(real_data: Folder, name: str, accuracy: float) -> None:
    """A straight line through the pixels names the class of images that it has not seen."""
    opened = open_dataset(real_data(name), split="test")
    assert isinstance(opened, Pixels)
    seen, unseen = (
        Pixels(opened.origin, opened.classes, opened.images[part], opened.labels[part])
        for part in (slice(0, 8000), slice(8000, None))
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(opened.images[0].numel(), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 if name != "cifar10" else 0.003)
    batches = MemoryBatches(seen, 200, augment=False)
    for _ in range(200):
        images, labels = next(batches)
        loss = torch.nn.functional.cross_entropy(model(normalise(images, name).flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = model(normalise(unseen.images, name).flatten(1)).argmax(1)
    assert (found == unseen.labels).float().mean() > accuracy


def test_rows_of_cifar_are_not_mixed_up(real_data: Folder) -> None:
    """Neighbouring pixels are alike in a photograph; a wrong reshape would lose that (five pixels away: 36)."""
    test = open_dataset(real_data("cifar10"), split="test")
    assert isinstance(test, Pixels)
    images = test.images[:500].float()
    assert (images[..., 1:, :] - images[..., :-1, :]).abs().mean() < 20
    assert (images[..., 1:] - images[..., :-1]).abs().mean() < 20


def test_mnist_is_not_taken_for_fashion(real_data: Folder) -> None:
    with pytest.raises(RequestError, match="holds mnist, not fashion-mnist"):
        open_dataset(real_data("mnist"), "fashion-mnist", "test")


def test_speeches_are_packed_bytes(real_data: Folder) -> None:
    train = open_dataset(real_data("sotu"), sequence=256)
    test = open_dataset(real_data("sotu"), split="test", sequence=256)
    assert isinstance(train, Packed)
    assert (train.kind, train.vocabulary) == ("text", 256)
    assert 8 * len(test) < len(train) < 10 * len(test)
    tokens, following = train[0]
    assert torch.equal(tokens[1:], following[:-1])
    assert bytes(tokens.tolist()).decode().startswith("Fellow")
