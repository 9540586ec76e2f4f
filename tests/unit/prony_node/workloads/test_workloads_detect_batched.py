"""Faster R-CNN's training for a batch at once: held to torchvision's own, rule by rule and as a whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from prony_node.backends.torch.task import Batch
from prony_node.data.detection import COUNTS, SIZES
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.detect import (
    Bounds,
    Pool,
    Truths,
    assigned,
    batched_loss,
    decoded,
    drawn,
    encoded,
    kept_by_library,
    library_loss,
    pooled_by_library,
    pooled_from_all,
    proposals,
)

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
TASK = build_task(find_workload("fasterrcnn-r50-fpn"), {"size": "tiny"})


def random_boxes(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 80
    return torch.cat((corner, corner + 4 + torch.rand(count, 2, generator=generator) * 40), dim=1)


@pytest.mark.parametrize("bounds", [Bounds(0.7, 0.3, best_too=True), Bounds(0.5, 0.5)])
def test_each_candidate_gets_the_box_that_torchvision_gives_it(bounds: Bounds) -> None:
    """Over six images, so that they are compared in two portions; the fourth has no box at all."""
    from torchvision.models.detection._utils import Matcher
    from torchvision.ops import box_iou

    counts = [3, 1, 5, 0, 2, 4]
    boxes = torch.stack([random_boxes(5, seed) for seed in range(6)])
    real = torch.arange(5) < torch.tensor(counts)[:, None]
    candidates = torch.stack([random_boxes(300, 10 + seed) for seed in range(6)])
    found = assigned(Truths(boxes, torch.ones(6, 5, dtype=torch.int64), real), candidates, bounds)
    matcher = Matcher(bounds.positive, bounds.negative, bounds.best_too)
    for image, count in enumerate(counts):
        if not count:
            assert found.negative[image].all()
            continue
        expected = matcher(box_iou(boxes[image, :count], candidates[image]))
        assert torch.equal(found.positive[image], expected >= 0)
        assert torch.equal(found.negative[image], expected == matcher.BELOW_LOW_THRESHOLD)
        assert torch.equal(found.rows[image][expected >= 0], expected[expected >= 0])


def test_what_is_drawn_is_drawn_by_chance_and_in_the_right_numbers() -> None:
    positive = torch.zeros(3, 100, dtype=torch.bool)
    positive[0, :40], positive[1, 7] = True, True
    negative = ~positive
    negative[2, 5:] = False  # an image with five candidates that may be judged
    times = torch.zeros(100)
    for _ in range(200):
        places, is_drawn = drawn(positive, negative, 20, 8)
        assert places.shape == is_drawn.shape == (3, 20)
        told = [positive[image][places[image][is_drawn[image]]] for image in range(3)]
        assert [(len(one), int(one.sum())) for one in told] == [(20, 8), (20, 1), (5, 0)]
        assert all(len(row[kept].unique()) == int(kept.sum()) for row, kept in zip(places, is_drawn, strict=True))
        times[places[0]] += 1
    assert times[:40].min() > 15  # of 40 expected: none is favoured
    assert times[:40].sum() == 8 * 200


def test_codes_are_those_of_the_library() -> None:
    from torchvision.models.detection._utils import BoxCoder

    coder, boxes, seen_from = BoxCoder(WEIGHTS), random_boxes(50, 1), random_boxes(50, 2)
    codes = encoded(boxes, seen_from, WEIGHTS)
    torch.testing.assert_close(codes, coder.encode_single(boxes, seen_from))
    torch.testing.assert_close(decoded(codes, seen_from, WEIGHTS, coder.bbox_xform_clip), boxes)
    wild = torch.randn(50, 4) * 40
    expected = coder.decode_single(wild, seen_from)
    torch.testing.assert_close(decoded(wild, seen_from, WEIGHTS, coder.bbox_xform_clip), expected)


def model_and_batch(images: int = 5) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    model = TASK.model()
    batch = TASK.sample(torch.Generator().manual_seed(3), images)
    batch[COUNTS][1] = 0  # an image without a box among them
    return model, batch


def test_proposals_are_those_of_the_library() -> None:
    model, _ = model_and_batch()
    per_level, sizes = [600, 150], [(70, 96), (96, 64)]
    generator = torch.Generator().manual_seed(4)
    scores, codes = torch.randn(2, 750, generator=generator), torch.randn(2, 750, 4, generator=generator) * 0.3
    anchors = random_boxes(750, 5)
    codes[0, :20, 2:] = -40.0  # boxes without an inside, which are no proposals
    every = torch.stack([decoded(row, anchors, (1.0,) * 4, 4.0) for row in codes])
    theirs, _ = model.rpn.filter_proposals(every, scores.flatten(), sizes, per_level)
    boxes, there = proposals(model.rpn, scores, codes, anchors, per_level, sizes, kept_by_library)
    for found, rows, expected in zip(boxes, there, theirs, strict=True):
        torch.testing.assert_close(found[rows], expected)


def test_regions_are_pooled_from_their_level_as_the_library_pools_them() -> None:
    """To the last bit, and so are the gradients of each level: what lies outside of it adds nothing."""
    from torchvision.ops import MultiScaleRoIAlign

    generator = torch.Generator().manual_seed(6)
    sizes, levels = [(200, 320), (256, 256)], ("0", "1", "2", "3")
    maps = {name: torch.randn(2, 3, 64 >> at, 80 >> at, generator=generator) for at, name in enumerate(levels)}
    corner = torch.rand(2, 90, 2, generator=generator) * 100
    regions = torch.cat((corner, corner + torch.logspace(0, 2.7, 90)[:, None].expand(2, 90, 2)), dim=-1)
    regions[1, :3] = 0.0  # rows that hold no box
    pooled, gradients = [], []
    for pool in (pooled_by_library, pooled_from_all):
        pooler = MultiScaleRoIAlign(list(levels), 7, 2)
        features = {name: level.clone().requires_grad_() for name, level in maps.items()}
        pooled.append(pool(pooler, {**features, "pool": maps["3"]}, regions, sizes))
        pooled[-1].square().sum().backward()
        gradients.append([level.grad for level in features.values()])
    assert pooler.map_levels(list(regions)).unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(*pooled)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("pool", [pooled_by_library, pooled_from_all])
def test_the_losses_are_the_library_s_where_everything_is_judged(pool: Pool) -> None:
    """Chance alone tells them apart, so nothing is left to it."""
    model, batch = model_and_batch()
    for part in (model.rpn, model.roi_heads):
        part.fg_bg_sampler.batch_size_per_image, part.fg_bg_sampler.positive_fraction = 100_000, 1.0
    losses, gradients = [], []
    for loss in (partial(batched_loss, pool=pool), library_loss):
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        losses.append(value.detach())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*losses)
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


def test_what_the_host_must_know_is_not_sent_away() -> None:
    assert TASK.on_host == (SIZES, COUNTS)
