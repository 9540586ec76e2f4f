"""Boxes, focal loss, matching and the sums of losses, each against arithmetic done by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from prony_node.workloads import dino as losses
from prony_node.workloads.dino import Matching, match_costs
from prony_node.workloads.dino_model import Targets, ToHost, centre_size, corners, generalised_iou, logit

Box = tuple[float, float, float, float]
SIZES = torch.tensor([[100, 200], [50, 80]])


@pytest.fixture
def targets() -> Targets:
    """Three boxes in the first image and one in the second, in four rows."""
    boxes = torch.zeros(2, 4, 4)
    boxes[0, :3] = torch.tensor([[10.0, 20, 60, 50], [100, 10, 180, 90], [30, 30, 50, 80]])
    boxes[1, 0] = torch.tensor([8.0, 10, 40, 35])
    labels = torch.tensor([[1, 4, 2, 0], [3, 0, 0, 0]])
    return Targets(SIZES, boxes, labels, torch.tensor([3, 1]))


def cells(box: tuple[int, ...]) -> set[tuple[int, int]]:
    left, top, right, bottom = box
    return set(itertools.product(range(left, right), range(top, bottom)))


def iou_by_cells(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    a, b = cells(one), cells(other)
    hull = cells((min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])))
    return len(a & b) / len(a | b) - len(hull - (a | b)) / len(hull)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 0, 4, 4), (2, 2, 6, 6)),
        ((0, 0, 3, 5), (4, 6, 9, 8)),
        ((1, 1, 9, 9), (3, 4, 5, 6)),
        ((2, 3, 7, 8), (2, 3, 7, 8)),
        ((0, 0, 4, 4), (4, 0, 8, 4)),
    ],
)
def test_generalised_iou_counts_cells(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    found = generalised_iou(torch.tensor(one).float(), torch.tensor(other).float())
    assert float(found) == pytest.approx(iou_by_cells(one, other), abs=1e-6)


def test_boxes_without_area_have_an_overlap_and_a_gradient() -> None:
    boxes = torch.tensor([[0.5, 0.5, 0.5, 0.5]], requires_grad=True)
    found = generalised_iou(boxes, torch.tensor([[0.5, 0.5, 0.5, 0.5]]))
    found.sum().backward()
    assert found.isfinite().all()
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()


def test_corners_and_centres_are_each_other_s_inverse() -> None:
    assert corners(torch.tensor([0.5, 0.4, 0.2, 0.6])).tolist() == pytest.approx([0.4, 0.1, 0.6, 0.7])
    boxes = torch.rand(5, 4)
    torch.testing.assert_close(centre_size(corners(boxes)), boxes)
    assert float(logit(torch.tensor(0.2))) == pytest.approx(math.log(0.2 / 0.8))
    assert logit(torch.tensor([0.0, 1.0])).isfinite().all()


def test_targets_are_shares_of_the_image_without_padding(targets: Targets) -> None:
    assert (targets.counts, targets.most, targets.total) == ([3, 1], 3, 4)
    assert targets.boxes.shape == (2, 3, 4)
    assert targets.boxes[0, 0].tolist() == pytest.approx([35 / 200, 35 / 100, 50 / 200, 30 / 100])
    assert targets.boxes[1, 0].tolist() == pytest.approx([24 / 80, 22.5 / 50, 32 / 80, 25 / 50])
    assert targets.real.tolist() == [[True] * 3, [True, False, False]]


def focal_by_hand(value: float, wanted: bool) -> float:
    likely = 1 / (1 + math.exp(-value))
    if wanted:
        return -0.25 * (1 - likely) ** 2 * math.log(likely)
    return -0.75 * likely**2 * math.log(1 - likely)


def test_focal_loss_by_hand() -> None:
    logits = torch.tensor([-6.0, -1.5, 0.0, 0.7, 4.0])
    for wanted in (0.0, 1.0):
        found = losses.focal_loss(logits, torch.full((5,), wanted))
        expected = [focal_by_hand(float(value), bool(wanted)) for value in logits]
        assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert losses.focal_loss(torch.tensor([80.0, -80.0]), torch.tensor([0.0, 1.0])).isfinite().all()


def as_corners(box: list[float]) -> list[float]:
    x, y, width, height = box
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def overlap_by_hand(one: list[float], other: list[float]) -> float:
    a, b = as_corners(one), as_corners(other)
    shared = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = one[2] * one[3] + other[2] * other[3] - shared
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return shared / union - (hull - union) / hull


def cost_by_hand(logits: list[float], box: list[float], label: int, wanted: list[float]) -> float:
    by_class = focal_by_hand(logits[label], True) - focal_by_hand(logits[label], False)
    distance = sum(abs(a - b) for a, b in zip(box, wanted, strict=True))
    return 2 * by_class + 5 * distance - 2 * overlap_by_hand(box, wanted)


def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    """Of two layers, two images and five queries."""
    return torch.randn(2, 2, 5, 5), 0.2 + 0.5 * torch.rand(2, 2, 5, 4)


def test_costs_by_hand(targets: Targets) -> None:
    logits, boxes = predictions()
    costs = match_costs(logits, boxes, targets)
    for layer, image, query, box in itertools.product(range(2), range(2), range(5), range(3)):
        if box < targets.counts[image]:
            place = (layer, image, query)
            label, wanted = int(targets.labels[image, box]), targets.boxes[image, box].tolist()
            expected = cost_by_hand(logits[place].tolist(), boxes[place].tolist(), label, wanted)
            assert float(costs[(*place, box)]) == pytest.approx(expected, abs=1e-4)


def test_the_matching_is_the_cheapest_of_all(targets: Targets) -> None:
    logits, boxes = predictions()
    costs = match_costs(logits, boxes, targets)
    before = ToHost.waits
    found = Matching(logits, boxes, targets).get()
    assert ToHost.waits - before == 1
    for layer, image in itertools.product(range(2), range(2)):
        count = targets.counts[image]
        ways = itertools.permutations(range(5), count)
        best = min(ways, key=lambda way: sum(float(costs[layer, image, query, box]) for box, query in enumerate(way)))
        here = (found.sets == layer) & (found.images == image)
        pairs = dict(zip(found.boxes[here].tolist(), found.queries[here].tolist(), strict=True))
        assert pairs == dict(enumerate(best))


def test_what_overflowed_is_matched_all_the_same(targets: Targets) -> None:
    logits, boxes = predictions()
    logits[0, 0, 2] = torch.nan
    found = Matching(logits, boxes, targets).get()
    assert len(found.sets) == 2 * 4


def test_the_matched_loss_is_the_sum_over_layers(targets: Targets) -> None:
    logits, boxes = predictions()
    matches = Matching(logits, boxes, targets).get()
    pairs = {(s, i, q): b for s, i, q, b in zip(
        matches.sets.tolist(), matches.images.tolist(), matches.queries.tolist(), matches.boxes.tolist(), strict=True
    )}  # fmt: skip
    total = 0.0
    for place in itertools.product(range(2), range(2), range(5)):
        box = pairs.get(place)
        label = -1 if box is None else int(targets.labels[place[1], box])
        total += sum(focal_by_hand(float(value), at == label) for at, value in enumerate(logits[place]))
        if box is not None:
            wanted, given = targets.boxes[place[1], box].tolist(), boxes[place].tolist()
            total += 5 * sum(abs(a - b) for a, b in zip(given, wanted, strict=True))
            total += 2 * (1 - overlap_by_hand(given, wanted))
    assert float(losses.matched_loss(logits, boxes, targets, matches)) == pytest.approx(total / 4, rel=1e-4)


def test_the_denoising_loss_is_of_real_boxes_alone(targets: Targets) -> None:
    """Two groups of three pairs: a positive has its box, a negative nothing, and empty rows do not count."""
    logits, boxes = torch.randn(2, 2, 12, 5), 0.2 + 0.5 * torch.rand(2, 2, 12, 4)
    total = 0.0
    for layer, image, group, negative, box in itertools.product(range(2), range(2), range(2), range(2), range(3)):
        if box >= targets.counts[image]:
            continue
        place = (layer, image, group * 6 + negative * 3 + box)
        label = -1 if negative else int(targets.labels[image, box])
        total += sum(focal_by_hand(float(value), at == label) for at, value in enumerate(logits[place]))
        if not negative:
            wanted, given = targets.boxes[image, box].tolist(), boxes[place].tolist()
            total += 5 * sum(abs(a - b) for a, b in zip(given, wanted, strict=True))
            total += 2 * (1 - overlap_by_hand(given, wanted))
    assert float(losses.denoising_loss(logits, boxes, targets, 2)) == pytest.approx(total / (4 * 2), rel=1e-4)


def test_images_without_boxes_have_a_loss() -> None:
    empty = Targets(SIZES, torch.zeros(2, 4, 4), torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 0]))
    logits, boxes = predictions()
    found = Matching(logits, boxes, empty).get()
    assert len(found.sets) == 0
    expected = sum(focal_by_hand(float(value), False) for value in logits.flatten())
    assert float(losses.matched_loss(logits, boxes, empty, found)) == pytest.approx(expected, rel=1e-4)
