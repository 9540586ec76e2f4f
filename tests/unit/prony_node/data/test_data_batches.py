"""Batches come without end, whole, and leave no worker behind."""

from __future__ import annotations

import itertools
import multiprocessing
import time

import pytest
import torch
from torch import Tensor

from prony_node.data import synthetic as device_room
from prony_node.data.detection import TINY_SCENERY, box_sampler, padded
from prony_node.data.synthetic import (
    FEWEST_BATCHES,
    MOST_BATCHES,
    STOCK,
    HostBatches,
    HostSamples,
    SamplesApart,
    device_batches,
    image_sampler,
    token_sampler,
)

CPU = torch.device("cpu")


def host_batches(length: int, batch: int, workers: int, seed: int = 0, drawn: int = 1) -> HostBatches:
    samples = HostSamples(image_sampler(10, 8), length, drawn)
    prefetch = 2 if workers else None
    return HostBatches(samples, batch, seed=seed, workers=workers, prefetch=prefetch, pin_memory=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_host_batches_are_whole_and_without_end(workers: int) -> None:
    batches = host_batches(length=20, batch=8, workers=workers)
    try:
        seen = list(itertools.islice(batches, 7))  # three epochs of two batches and one more
    finally:
        batches.close()
    assert {(images.shape, labels.shape) for images, labels in seen} == {((8, 3, 8, 8), (8,))}
    first_epoch, second_epoch = (torch.cat([batch[0] for batch in seen[at : at + 2]]) for at in (0, 2))
    assert not torch.equal(first_epoch, second_epoch)  # shuffled anew


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_ends_the_workers(workers: int) -> None:
    before = set(multiprocessing.active_children())
    batches = host_batches(length=64, batch=4, workers=workers)
    next(batches)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == workers
    batches.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(worker.is_alive() for worker in started):
        time.sleep(0.02)
    assert not [worker for worker in started if worker.is_alive()]
    batches.close()  # once more does no harm


def test_a_seed_gives_the_same_host_batches() -> None:
    def first(seed: int, drawn: int) -> Tensor:
        batches = host_batches(64, 8, 0, seed, drawn)
        return next(batches)[0]

    assert torch.equal(first(0, 1), first(0, 1))
    assert not torch.equal(first(0, 1), first(1, 1))  # another order
    assert not torch.equal(first(0, 1), first(0, 2))  # other samples


def test_a_long_data_set_comes_round_in_its_stock() -> None:
    samples = HostSamples(token_sampler(100, 8), 10**7, 0)
    assert len(samples) == 10**7
    assert torch.equal(samples[STOCK + 3][0], samples[3][0])
    assert not torch.equal(samples[4][0], samples[3][0])


def pool_size(sample_bytes: int, samples: int) -> int:
    """How many distinct batches come round; every sample that was made is in one of them."""
    made = 0

    def sampler(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        nonlocal made
        numbers = torch.arange(made, made + batch_size).to(torch.uint8)
        made += batch_size
        return (numbers[:, None].expand(batch_size, sample_bytes).contiguous(),)

    batches = device_batches(sampler, lambda batch: batch, samples, device=CPU, seed=0)
    count = made // samples
    around = [batch[0] for batch in itertools.islice(batches, 2 * count)]
    assert {batch.shape for batch in around} == {(samples, sample_bytes)}
    seen = torch.cat([batch[:, 0] for batch in around]).tolist()
    assert seen == list(range(count * samples)) * 2  # each in turn, then again
    return count


@pytest.mark.parametrize(
    ("batch_bytes", "batches"),
    [
        (1, MOST_BATCHES),
        (2**20 // MOST_BATCHES, MOST_BATCHES),
        (2**20 // 10, 10),
        (2**20, FEWEST_BATCHES),
        (2**21, FEWEST_BATCHES),
    ],
)
def test_the_pool_on_the_device_is_bounded(monkeypatch: pytest.MonkeyPatch, batch_bytes: int, batches: int) -> None:
    monkeypatch.setattr(device_room, "POOL_BYTES", 2**20)
    assert pool_size(batch_bytes, 1) == batches
    assert pool_size(max(1, batch_bytes // 2), 2) == batches


def test_the_pool_is_counted_as_the_step_takes_it() -> None:
    """A batch is placed before it is weighed: in bf16 twice as many fit."""
    placed: list[int] = []

    def place(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        placed.append(len(batch[0]))
        return tuple(tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in batch)

    batches = device_batches(image_sampler(10, 8), place, 4, device=CPU, seed=3)
    images, labels = next(batches)
    assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.long)
    assert placed == [4] * MOST_BATCHES
    again = next(device_batches(image_sampler(10, 8), place, 4, device=CPU, seed=3))
    assert torch.equal(again[0], images)


def test_batches_that_differ_in_shape_are_drawn_one_by_one_and_come_round_again() -> None:
    drawn: list[int] = []
    sample = box_sampler(4, TINY_SCENERY)

    def recorded(generator: torch.Generator, count: int) -> tuple[Tensor, ...]:
        drawn.append(count)
        return sample(generator, count)

    batches = device_batches(recorded, lambda batch: batch, 2, device=CPU, seed=0, apart=True)
    seen = list(itertools.islice(batches, MOST_BATCHES + 1))
    assert drawn == [2] * MOST_BATCHES
    assert seen[0] is seen[MOST_BATCHES]
    assert len({batch[0].shape for batch in seen}) > 1


def test_host_samples_of_different_shapes_are_padded_when_they_are_put_together() -> None:
    samples = SamplesApart(box_sampler(4, TINY_SCENERY), 100, 0)
    assert len({samples[index][0].shape for index in range(20)}) > 1
    assert len(samples) == 100
    batches = HostBatches(samples, 4, seed=0, workers=0, prefetch=None, pin_memory=False, collate=padded)
    shapes = set()
    for images, sizes, boxes, labels, counts in itertools.islice(batches, 8):
        assert images.shape[2:] == tuple(sizes.max(0).values)
        assert (len(boxes), len(labels), len(counts)) == (4, 4, 4)
        shapes.add(images.shape)
    batches.close()
    assert len(shapes) > 1
