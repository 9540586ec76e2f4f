"""Decoding ahead of the step: the same batches in the same order, errors arrive, and no thread stays or hangs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_sets import imagenet, jpeg, write
from torch import Tensor
from torch.utils.data import DataLoader

from prony_node.contract import RequestError
from prony_node.data import loader
from prony_node.data.batches import Prefetcher, SentBatches
from prony_node.data.loader import (
    LEAST,
    MOST,
    DecodeShare,
    Divided,
    Encoded,
    EpochOrder,
    FileBatches,
    crop_for,
    decode_on_cpu,
    decode_on_device,
    decoded,
    file_loader,
)
from prony_node.data.source import open_dataset

CPU = torch.device("cpu")
PATIENCE_S = 30.0


@pytest.fixture
def images(tmp_path: Path) -> Encoded:
    opened = open_dataset(imagenet(tmp_path))
    assert isinstance(opened, Encoded)
    return opened


def wait_for(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "prony-ahead"}


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = threads()
    yield
    assert wait_for(lambda: threads() <= before)


def on_device(images: Encoded, **settings: object) -> FileBatches:
    given = {"workers": 0, "image_size": 16, "decode": "device", "device": "cpu", **settings}
    return file_loader(images, 5, **given)  # type: ignore[arg-type]


# The thread


def test_what_is_made_comes_in_order_and_ends_when_it_ends() -> None:
    numbers = iter(range(20))
    ahead = Prefetcher(lambda: next(numbers))
    assert [ahead.take() for _ in range(20)] == list(range(20))
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.take()
    ahead.close()


def test_no_more_is_made_than_asked_for() -> None:
    made = itertools.count()
    seen: list[int] = []

    def make() -> int:
        seen.append(next(made))
        return seen[-1]

    ahead = Prefetcher(make, depth=2)
    ahead.wait_until_idle()
    assert seen == [0, 1]
    assert ahead.take() == 0
    ahead.wait_until_idle()
    assert seen == [0, 1, 2]
    ahead.close()
    assert seen == [0, 1, 2]


def test_a_moment_without_anything_is_no_item() -> None:
    items = iter([None, None, 1, None, 2])
    ahead = Prefetcher(lambda: next(items))
    assert (ahead.take(), ahead.take()) == (1, 2)
    ahead.close()


def test_what_came_before_an_error_is_given_first() -> None:
    def make() -> int:
        if next(count) == 2:
            raise RequestError("the disk is gone")
        return 7

    count = itertools.count()
    ahead = Prefetcher(make, depth=3)
    ahead.wait_until_idle()
    assert (ahead.take(), ahead.take()) == (7, 7)
    with pytest.raises(RequestError, match="the disk is gone"):
        ahead.take()
    ahead.close()
    with pytest.raises(StopIteration):
        ahead.take()


def test_closing_frees_whoever_waits() -> None:
    ahead: Prefetcher[int] = Prefetcher(lambda: time.sleep(0.001))
    ended: list[bool] = []

    def consume() -> None:
        try:
            ahead.take()
        except StopIteration:
            ended.append(True)

    consumer = threading.Thread(target=consume)
    consumer.start()
    ahead.close()
    consumer.join(PATIENCE_S)
    assert ended == [True]


# The batches


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_pixels_are_those_decoded_without_a_thread(images: Encoded, workers: int) -> None:
    task = Divided(images, 16, True, 3, None, DecodeShare(1.0))
    plain = DataLoader(task, batch_sampler=EpochOrder(len(images), 5, 3, True), collate_fn=lambda batch: batch)
    batches = on_device(images, workers=workers, seed=3)
    for none, labels, data, ends, seeds, _ in itertools.islice(plain, 7):
        assert not len(none)
        pixels, found = next(batches)
        assert torch.equal(found, labels)
        assert torch.equal(pixels, decode_on_device(data.tensor_split(ends[:-1]), 16, True, seeds.tolist(), CPU))
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_both_decode_the_images_that_each_alone_would(images: Encoded, workers: int) -> None:
    by_workers, by_device = on_device(images, decode="cpu", seed=3), on_device(images, seed=3)
    both = on_device(images, decode="both", workers=workers, seed=3)
    for _ in range(7):
        (mine, labels), (its, _), (pixels, found) = next(by_workers), next(by_device), next(both)
        assert torch.equal(found, labels)
        mine_first = [torch.equal(image, own) for image, own in zip(pixels, mine, strict=True)]
        its_last = [torch.equal(image, own) for image, own in zip(pixels, its, strict=True)]
        assert (mine_first[0], its_last[-1]) == (True, True)  # each has some of every batch
        assert all(one or other for one, other in zip(mine_first, its_last, strict=True))
    assert both.share is not None
    assert 0 < (both.share.found or 0) < 1
    for batches in (by_workers, by_device, both):
        batches.close()


def test_what_workers_decoded_is_the_same_when_a_thread_sends_it(images: Encoded) -> None:
    """As on a GPU, where the copy runs beside the step."""
    straight = on_device(images, decode="cpu", workers=2, seed=3)
    assert not threads()
    sent = on_device(images, decode="cpu", sends=True, workers=2, seed=3)
    assert threads()
    for (pixels, labels), (expected, also) in itertools.islice(zip(sent, straight, strict=True), 7):
        assert torch.equal(pixels, expected)
        assert torch.equal(labels, also)
    sent.close()
    straight.close()


def test_sent_batches_are_those_of_the_loader_and_end_with_it() -> None:
    class Counted:
        closed = False

        def __init__(self) -> None:
            self.left = iter([(torch.full((2,), number),) for number in range(5)])

        def __next__(self) -> tuple[Tensor, ...]:
            return next(self.left)

        def close(self) -> None:
            self.closed = True

    source = Counted()
    sent = SentBatches(source, lambda batch: (batch[0] * 10,), CPU)
    sent.wait_until_idle()
    assert [int(batch[0][0]) for batch in sent] == [0, 10, 20, 30, 40]
    sent.close()
    assert source.closed
    assert not threads()


# The shares of decode=both


def test_each_side_gets_a_part_by_its_speed() -> None:
    share = DecodeShare(None, workers=4)
    for _ in range(60):  # a worker takes 2 ms for an image and there are four: 2,000 a second; the device makes 1,000
        device = share.count(300)
        share.saw(300 - device, (300 - device) * 2e-3, device, device * 1e-3)
    assert share.count(300) == 100


def test_a_side_that_is_hopeless_still_has_a_little_so_that_it_can_be_seen_to_recover() -> None:
    for worker_s, device_s, part in ((1e-6, 1.0, LEAST), (1.0, 1e-6, MOST)):
        share = DecodeShare(None, workers=1)
        for _ in range(100):
            device = share.count(64)
            share.saw(64 - device, worker_s * (64 - device), device, device_s * device)
        assert share.part == part
        assert 0 < share.count(2) < 2
        for _ in range(100):
            device = share.count(64)
            share.saw(64 - device, 1e-3 * (64 - device), device, 1e-3 * device)
        assert share.part == pytest.approx(0.5, abs=0.01)


def test_a_given_share_stays() -> None:
    for part in (0.0, 1.0):
        share = DecodeShare(part)
        share.saw(5, 1.0, 5, 1.0)
        assert (share.count(7), share.count(0)) == (7 * part, 0)
        assert share.found is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_reaches_whoever_takes_the_batch(tmp_path: Path, workers: int) -> None:
    write(imagenet(tmp_path) / "train" / "n0" / "n0_0.JPEG", b"\xff\xd8\xff no image")
    opened = open_dataset(tmp_path)
    assert isinstance(opened, Encoded)
    batches = on_device(opened, workers=workers)
    with pytest.raises(RequestError, match="cannot be decoded"):
        list(itertools.islice(batches, 3))
    batches.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_whoever_stops_early_leaves_no_thread(images: Encoded, workers: int) -> None:
    batches = on_device(images, workers=workers)
    next(batches)
    del batches  # and never closed: the fixture looks for the thread


def test_closing_does_not_wait_for_a_loader_that_gives_nothing(
    images: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hangs in its file system: the thread waits for it, and must not wait for ever."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # torch's patience with that worker
    read = images.read
    images.read = lambda index: time.sleep(600) or read(index)  # type: ignore[func-returns-value]
    batches = on_device(images, workers=1)
    assert threads()
    batches.close()
    assert not threads()
    assert next(batches, None) is None


def test_a_slow_loader_is_waited_for(images: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than torch's own patience with it, which is short here so that closing is prompt."""
    monkeypatch.setattr(loader, "MOMENT_S", 0.02)
    read = images.read
    images.read = lambda index: time.sleep(0.02) or read(index)  # type: ignore[func-returns-value]
    batches = on_device(images, workers=1)
    assert len(next(batches)[0]) == 5
    batches.close()


# Decoding


def one_by_one(images: list[Tensor], size: int, augment: bool, seeds: list[int]) -> Tensor:
    """Each image by itself, as plainly as it can be written."""
    batch = []
    for data, seed in zip(images, seeds, strict=True):
        image = decoded(data)
        crop = crop_for(image.shape[-2], image.shape[-1], augment, seed)
        part = image[None, :, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        part = F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        part = part.flip(-1) if crop.flip else part
        batch.append((part[0] + 0.5).clamp(0, 255).to(torch.uint8))
    return torch.stack(batch)


@pytest.mark.parametrize("augment", [True, False])
def test_images_cropped_together_are_as_one_by_one(augment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "GROUP", 4)  # so that the last group is not full
    shapes = [(200, 150), (90, 300), (33, 40), (500, 375), (64, 64), (120, 80)]
    data = [torch.frombuffer(bytearray(jpeg(at, *shape)), dtype=torch.uint8) for at, shape in enumerate(shapes)]
    seeds = list(range(40, 40 + len(data)))
    found, expected = decode_on_device(data, 48, augment, seeds, CPU), one_by_one(data, 48, augment, seeds)
    assert found.dtype == torch.uint8
    assert (found.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("seed", range(8))
def test_the_cpu_crops_as_torchvision_does(seed: int) -> None:
    transform = pytest.importorskip("torchvision.transforms.v2.functional")
    data = torch.frombuffer(bytearray(jpeg(seed, 300, 220)), dtype=torch.uint8)
    image = decoded(data)
    crop = crop_for(image.shape[-2], image.shape[-1], True, seed)
    expected = transform.resized_crop(image, crop.top, crop.left, crop.height, crop.width, [64, 64], antialias=True)
    expected = transform.horizontal_flip(expected) if crop.flip else expected
    assert (decode_on_cpu(data, 64, True, seed).int() - expected.int()).abs().max() <= 1
