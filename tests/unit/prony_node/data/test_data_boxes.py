"""Images with boxes: what a batch holds, and that scenes are spread as COCO's are."""

from __future__ import annotations

import random
import statistics

import pytest
import torch

from prony_node.data.detection import (
    COCO_SCENERY,
    MOST_BOXES,
    TINY_SCENERY,
    box_sampler,
    class_textures,
    draw_scene,
    overlap,
    padded,
)


def test_a_batch_has_the_layout_that_every_detector_reads() -> None:
    images, sizes, boxes, labels, counts = box_sampler(4, TINY_SCENERY)(torch.Generator().manual_seed(0), 16)
    assert [tensor.dtype for tensor in (images, sizes, boxes, labels, counts)] == [
        torch.float32, torch.int64, torch.float32, torch.int64, torch.int64
    ]  # fmt: skip
    assert images.shape[2:] == tuple(sizes.max(0).values)
    assert boxes.shape == (16, TINY_SCENERY.most, 4)
    assert labels.shape == (16, TINY_SCENERY.most)
    assert images.min() >= 0
    assert images.max() <= 1
    for image, (height, width), rows, numbers, count in zip(images, sizes, boxes, labels, counts, strict=True):
        assert image[:, height:].count_nonzero() == image[:, :, width:].count_nonzero() == 0
        assert rows[count:].count_nonzero() == numbers[count:].count_nonzero() == 0
        held = rows[:count]
        assert (held[:, :2] >= 0).all()
        assert (held[:, 2:] > held[:, :2]).all()
        assert (held[:, 2] <= width).all()
        assert (held[:, 3] <= height).all()
        assert ((numbers[:count] >= 1) & (numbers[:count] < 4)).all()


def test_a_box_shows_the_colours_of_its_class() -> None:
    images, _, boxes, labels, counts = box_sampler(4, TINY_SCENERY)(torch.Generator().manual_seed(1), 32)
    colours = class_textures(4).mean((2, 3))
    told = []
    for image, rows, numbers, count in zip(images, boxes.int(), labels, counts, strict=True):
        if count == 1:
            left, top, right, bottom = rows[0].tolist()
            seen = image[:, top:bottom, left:right].mean((1, 2))
            told.append(int((colours - seen).norm(dim=1).argmin()) == int(numbers[0]))
    assert len(told) > 3
    assert all(told)


def test_the_same_seed_gives_the_same_batch_and_another_seed_another() -> None:
    sample = box_sampler(4, TINY_SCENERY)
    first, again, other = (sample(torch.Generator().manual_seed(seed), 3) for seed in (5, 5, 6))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[2], other[2])


def test_scenes_have_the_published_figures_of_coco() -> None:
    scenes = [draw_scene(COCO_SCENERY, 91, random.Random(seed)) for seed in range(2000)]
    counts = sorted(len(scene.boxes) for scene in scenes)
    assert statistics.mean(counts) == pytest.approx(849_949 / 118_287, rel=0.06)  # without crowds
    assert statistics.median(counts) in (4, 5)
    assert counts[0] == 0
    assert 40 <= counts[-1] <= MOST_BOXES
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for scene in scenes for box in scene.boxes]
    shares = [sum(least <= area < most for area in areas) / len(areas) for least, most in ((0, 32**2), (32**2, 96**2))]
    assert shares == pytest.approx([0.41, 0.34], abs=0.02)
    pixels = sorted(scene.width * scene.height for scene in scenes)
    assert 167_500 <= pixels[100] <= pixels[-100] <= 355_840
    assert {label for scene in scenes for label in scene.labels} == set(range(1, 91))


def test_an_image_can_be_drawn_at_the_size_that_a_detector_scales_to() -> None:
    plain = draw_scene(COCO_SCENERY, 91, random.Random(3))
    large = draw_scene(COCO_SCENERY, 91, random.Random(3), scale_to=(800, 1333))
    assert min(large.width, large.height) == 800 or max(large.width, large.height) == 1333
    assert len(large.boxes) == len(plain.boxes)
    wide = draw_scene(TINY_SCENERY, 4, random.Random(3), scale_to=(800, 900))
    assert max(wide.width, wide.height) <= 900


def test_overlap_is_intersection_over_union() -> None:
    assert overlap((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 2, 2), (2, 0, 3, 2)) == 0


def test_samples_of_different_shapes_are_padded_at_their_ends() -> None:
    one, two = torch.ones(3, 2, 5), torch.ones(3, 4, 1)
    images, numbers = padded([(one, torch.tensor(1)), (two, torch.tensor(2))])
    assert images.shape == (2, 3, 4, 5)
    assert torch.equal(images[0, :, :2, :5], one)
    assert torch.equal(images[1, :, :4, :1], two)
    assert images.sum() == one.sum() + two.sum()
    assert numbers.tolist() == [1, 2]
