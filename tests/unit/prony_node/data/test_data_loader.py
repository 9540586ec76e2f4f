"""Batches from files: the same for a seed, whole, of the right images, and no worker stays."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_sets import imagenet, jpeg, shards, write
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data import loader
from prony_node.data.batches import MemoryBatches, mirrored, normalise, shifted
from prony_node.data.dataset import Origin, Pixels
from prony_node.data.loader import (
    AREA,
    Encoded,
    FileBatches,
    centre_crop,
    decode_on_cpu,
    decode_on_device,
    file_loader,
    random_crop,
)
from prony_node.data.source import open_dataset

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> Encoded:
    opened = open_dataset(imagenet(tmp_path))
    assert isinstance(opened, Encoded)
    return opened


def taken(batches: FileBatches, count: int) -> list[tuple[Tensor, ...]]:
    try:
        return list(itertools.islice(batches, count))
    finally:
        batches.close()


def same(one: list[tuple[Tensor, ...]], other: list[tuple[Tensor, ...]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


def test_a_seed_gives_the_same_batches_whoever_makes_them(images: Encoded) -> None:
    alone = taken(file_loader(images, 5, workers=0, image_size=16, seed=3), 5)
    assert {(tuple(batch[0].shape), batch[0].dtype) for batch in alone} == {((5, 3, 16, 16), torch.uint8)}
    assert same(alone, taken(file_loader(images, 5, workers=2, image_size=16, seed=3), 5))
    assert same(alone, taken(file_loader(images, 5, workers=2, image_size=16, seed=3, cache="memory"), 5))
    assert not same(alone, taken(file_loader(images, 5, workers=0, image_size=16, seed=4), 5))
    labels = torch.cat([batch[1] for batch in alone[:2]])
    assert labels.unique().tolist() == [0, 1, 2]


def test_each_epoch_sees_every_sample_once_and_crops_anew(images: Encoded) -> None:
    seen = taken(file_loader(images, 12, workers=0, image_size=16), 2)
    assert [batch[1].bincount().tolist() for batch in seen] == [[4, 4, 4]] * 2
    one, other = ({image.numpy().tobytes() for image in batch[0]} for batch in seen)
    assert not one & other


@pytest.mark.parametrize("layout", [imagenet, shards])
@pytest.mark.parametrize("decode", ["cpu", "device"])
def test_evaluation_is_one_pass_in_order(tmp_path: Path, layout: Callable[[Path], Path], decode: str) -> None:
    opened = open_dataset(layout(tmp_path))
    assert isinstance(opened, Encoded)
    batches = file_loader(
        opened, 4, workers=1, image_size=16, augment=False, endless=False, decode=decode, device="cpu"
    )
    seen = taken(batches, 100)
    assert torch.equal(torch.cat([batch[1] for batch in seen]), opened.labels)
    expected = torch.stack([decode_on_cpu(opened[at][0], 16, False, 0) for at in range(len(opened))])
    found = torch.cat([batch[0] for batch in seen])
    assert (found.int() - expected.int()).abs().max() <= (0 if decode == "cpu" else 2)  # they round apart


def test_decoding_on_a_device_crops_alike() -> None:
    data = torch.frombuffer(bytearray(jpeg(3, 200, 150)), dtype=torch.uint8)
    on_device = decode_on_device([data, data], 32, True, [5, 6], CPU)
    for at, seed in enumerate((5, 6)):
        assert (on_device[at].int() - decode_on_cpu(data, 32, True, seed).int()).abs().max() <= 2
    assert not torch.equal(on_device[0], on_device[1])


def test_crops_lie_within_and_cover_what_they_should() -> None:
    generator = torch.Generator().manual_seed(0)
    crops = [random_crop(300, 400, generator) for _ in range(500)]
    assert all(crop.top >= 0 and crop.left >= 0 for crop in crops)
    assert all(crop.top + crop.height <= 300 and crop.left + crop.width <= 400 for crop in crops)
    shares = [crop.height * crop.width / 120_000 for crop in crops]
    assert min(shares) > AREA[0] * 0.95
    assert 0.35 < sum(shares) / 500 < 0.55
    assert 200 < sum(crop.flip for crop in crops) < 300
    assert (centre_crop(256, 300).height, centre_crop(1, 1).height) == (224, 1)
    assert random_crop(1, 900, generator).height == 1  # an odd shape still has a crop


def test_workers_end_with_the_iterator(images: Encoded) -> None:
    before = set(multiprocessing.active_children())
    batches = file_loader(images, 4, workers=2, image_size=16)
    next(batches)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    batches.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(worker.is_alive() for worker in started):
        time.sleep(0.02)
    assert not [worker for worker in started if worker.is_alive()]
    batches.close()
    assert next(batches, None) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_said(tmp_path: Path, workers: int) -> None:
    write(imagenet(tmp_path) / "train" / "n0" / "n0_0.JPEG", b"\xff\xd8\xff no image")
    opened = open_dataset(tmp_path)
    assert isinstance(opened, Encoded)
    with pytest.raises(RequestError, match=r"n0_0\.JPEG \(\d+ bytes\) cannot be decoded"):
        taken(file_loader(opened, 12, workers=workers, image_size=16), 1)


def test_wrong_settings_are_refused(images: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="batch_size=13 does not fit a set of 12 samples"):
        file_loader(images, 13, workers=0)
    with pytest.raises(RequestError, match="unknown decode 'gpu'"):
        file_loader(images, 1, workers=0, decode="gpu")
    with pytest.raises(RequestError, match="unknown cache"):
        file_loader(images, 1, workers=0, cache="disk")
    with pytest.raises(RequestError, match="needs a device"):
        file_loader(images, 1, workers=0, decode="device")
    monkeypatch.setattr(loader, "_free_memory_bytes", lambda: 1000)
    with pytest.raises(RequestError, match=r"cache=memory would hold .* GB are free here"):
        file_loader(images, 1, workers=0, cache="memory")


def pixels(samples: int = 20) -> Pixels:
    values = torch.randint(256, (samples, 3, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    origin = Origin("cifar10", "train", Path("x"), ())
    return Pixels(origin, tuple("abcd"), values, torch.arange(samples) % 4)


def test_batches_in_memory_are_whole_shuffled_and_seeded() -> None:
    batches = MemoryBatches(pixels(), 8, seed=1)
    seen = [next(batches) for _ in range(4)]
    again = MemoryBatches(pixels(), 8, seed=1)
    assert same(seen, [next(again) for _ in range(4)])
    assert {tuple(batch[0].shape) for batch in seen} == {(8, 3, 8, 8)}
    assert not torch.equal(seen[0][0], seen[2][0])
    batches.close()
    assert next(batches, None) is None
    with pytest.raises(RequestError, match="does not fit"):
        MemoryBatches(pixels(), 21)


def test_evaluation_from_memory_is_every_sample_as_it_is() -> None:
    every = list(MemoryBatches(pixels(), 8, augment=False, endless=False))
    assert [len(batch[0]) for batch in every] == [8, 8, 4]
    assert torch.equal(torch.cat([batch[0] for batch in every]), pixels().images)


def test_augmentation_moves_and_mirrors_each_image_by_itself() -> None:
    source = pixels(200).images
    moved = shifted(source, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(source, (4,) * 4)
    offsets = set()
    for image, around in zip(moved, padded, strict=True):
        places = [
            (row, column)
            for row in range(9)
            for column in range(9)
            if torch.equal(around[:, row : row + 8, column : column + 8], image)
        ]
        assert len(places) == 1
        offsets.add(places[0])
    assert len(offsets) > 60
    turned = mirrored(source, torch.Generator().manual_seed(0))
    flipped = sum(torch.equal(a, b.flip(-1)) for a, b in zip(turned, source, strict=True))
    kept = sum(torch.equal(a, b) for a, b in zip(turned, source, strict=True))
    assert flipped + kept == 200
    assert 70 < flipped < 130


def test_normalising_takes_the_sets_own_statistics() -> None:
    images = torch.full((1, 3, 2, 2), 128, dtype=torch.uint8)
    found = normalise(images, "cifar10")
    assert found[0, 0, 0, 0] == pytest.approx((128 / 255 - 0.4914) / 0.2470, rel=1e-4)
    assert normalise(images, "unknown", torch.bfloat16).dtype == torch.bfloat16
