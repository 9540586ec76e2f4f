"""Mean average precision: worked by hand where it can be, and held to pycocotools on scenes of chance."""

from __future__ import annotations

import contextlib
import io
import math
import random

import pytest

from prony_node.data.detection import FoundBox, Truth, mean_average_precision

Image = tuple[list[Truth], list[FoundBox]]
SQUARE = (10.0, 10.0, 20.0, 20.0)
ELSEWHERE = (50.0, 50.0, 60.0, 60.0)


def test_every_box_found_exactly_is_one() -> None:
    images = [([Truth(1, SQUARE), Truth(2, ELSEWHERE)], [FoundBox(1, SQUARE, 0.9), FoundBox(2, ELSEWHERE, 0.1)])]
    assert mean_average_precision(images) == pytest.approx(1.0)


def test_nothing_found_is_nothing_and_nothing_to_find_is_no_number() -> None:
    assert mean_average_precision([([Truth(1, SQUARE)], [])]) == 0.0
    assert math.isnan(mean_average_precision([([], [FoundBox(1, SQUARE, 0.9)])]))


def test_the_wrong_class_in_the_right_place_is_wrong() -> None:
    assert mean_average_precision([([Truth(1, SQUARE)], [FoundBox(2, SQUARE, 0.9)])]) == 0.0


def test_an_overlap_counts_up_to_what_it_reaches() -> None:
    shifted = (10.0, 10.0, 20.0, 17.2)  # 0.72 of the union: right at 0.50 to 0.70, wrong at 0.75 to 0.95
    assert mean_average_precision([([Truth(1, SQUARE)], [FoundBox(1, shifted, 0.9)])]) == pytest.approx(0.5)


def test_a_wrong_answer_costs_when_it_is_surer_than_the_right_one() -> None:
    right, wrong = FoundBox(1, SQUARE, 0.5), FoundBox(1, ELSEWHERE, 0.9)
    assert mean_average_precision([([Truth(1, SQUARE)], [right, wrong])]) == pytest.approx(0.5)
    unsure = FoundBox(1, ELSEWHERE, 0.1)
    assert mean_average_precision([([Truth(1, SQUARE)], [right, unsure])]) == pytest.approx(1.0)


def test_half_of_the_boxes_are_found_up_to_half_of_the_recalls() -> None:
    images: list[Image] = [([Truth(1, SQUARE), Truth(1, ELSEWHERE)], [FoundBox(1, SQUARE, 0.9)])]
    assert mean_average_precision(images) == pytest.approx(51 / 101)


def test_a_box_is_found_once() -> None:
    twice = [FoundBox(1, SQUARE, 0.9), FoundBox(1, SQUARE, 0.8)]
    images: list[Image] = [([Truth(1, SQUARE)], twice), ([Truth(1, SQUARE)], [FoundBox(1, SQUARE, 0.7)])]
    assert mean_average_precision(images) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_crowd_is_neither_to_be_found_nor_wrong_to_find() -> None:
    crowd = Truth(1, (0.0, 0.0, 100.0, 100.0), crowd=True)
    inside = [FoundBox(1, ELSEWHERE, 0.95), FoundBox(1, (70.0, 70.0, 80.0, 80.0), 0.9)]
    answers = [*inside, FoundBox(1, SQUARE, 0.5)]
    assert mean_average_precision([([Truth(1, SQUARE), crowd], answers)]) == pytest.approx(1.0)
    assert math.isnan(mean_average_precision([([crowd], inside)]))


def by_pycocotools(images: list[Image]) -> float:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def bbox(corners: object) -> list[float]:
        left, top, right, bottom = corners  # type: ignore[misc]
        return [left, top, right - left, bottom - top]

    labels = sorted({truth.label for truths, _ in images for truth in truths} | {1})
    truths = [
        {"id": 1000 * image + at + 1, "image_id": image + 1, "category_id": truth.label, "bbox": bbox(truth.corners),
         "area": math.prod(bbox(truth.corners)[2:]), "iscrowd": int(truth.crowd)}
        for image, (there, _) in enumerate(images) for at, truth in enumerate(there)
    ]  # fmt: skip
    answers = [
        {"image_id": image + 1, "category_id": answer.label, "bbox": bbox(answer.corners), "score": answer.score}
        for image, (_, found) in enumerate(images)
        for answer in found
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": image + 1} for image in range(len(images))],
            "categories": [{"id": label} for label in labels],
            "annotations": truths,
        }
        known.createIndex()
        judged = COCOeval(known, known.loadRes(answers), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return float(judged.stats[0])


def images_of_chance(seed: int) -> list[Image]:
    """Answers near the truth and elsewhere, of classes that are rare and common, with crowds and equal scores."""
    chance = random.Random(seed)
    images: list[Image] = []
    for _ in range(chance.randint(1, 12)):
        truths, found = [], []
        for _ in range(chance.randint(0, 8)):
            left, top = chance.uniform(0, 80), chance.uniform(0, 80)
            corners = (left, top, left + chance.uniform(1, 40), top + chance.uniform(1, 40))
            truths.append(Truth(chance.choice((1, 1, 2, 3)), corners, crowd=chance.random() < 0.15))
        for truth in truths:
            for _ in range(chance.randint(0, 2)):
                moved = [value + chance.gauss(0, 2) for value in truth.corners]
                moved = [*moved[:2], max(moved[2], moved[0] + 0.5), max(moved[3], moved[1] + 0.5)]
                label = truth.label if chance.random() < 0.8 else 1
                found.append(FoundBox(label, moved, round(chance.random(), 1)))
        found += [FoundBox(2, ELSEWHERE, chance.random()) for _ in range(chance.randint(0, 3))]
        chance.shuffle(found)
        images.append((truths, found))
    return images


def test_it_is_what_pycocotools_counts() -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is in the dev extra")
    compared = 0
    for seed in range(60):
        images = images_of_chance(seed)
        if any(found for _, found in images) and any(not truth.crowd for truths, _ in images for truth in truths):
            assert mean_average_precision(images) == pytest.approx(by_pycocotools(images), abs=1e-9), seed
            compared += 1
    assert compared > 40
