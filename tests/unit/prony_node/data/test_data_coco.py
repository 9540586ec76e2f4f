"""COCO 2017 in its own layout: recognised, read, refused in sentences, loaded in batches, and judged."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from small_sets import coco, instances, tiny_coco, write
from torch import Tensor

from prony_node.backends.torch.inputs import Inputs, open_data
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.typed import encode
from prony_node.data.batches import as_input, evaluation_batches, training_batches
from prony_node.data.boxes import Shapes
from prony_node.data.coco import BoxedImages, DecodedBoxes, box_loader, mirrored_boxes, parse_instances
from prony_node.data.opening import open_dataset
from prony_node.data.source import chosen, fit_settings, open_source
from prony_node.run.rank import describe
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")


def opened(folder: Path, split: str = "train") -> BoxedImages:
    found = open_dataset(folder, split=split)
    assert isinstance(found, BoxedImages)
    return found


def test_the_layout_is_recognised_and_read(tmp_path: Path) -> None:
    found = opened(coco(tmp_path))
    assert (found.kind, len(found), found.class_count, found.classes) == ("coco", 2, 2, ("person", "dog"))
    assert found.label_count == 19  # labels are COCO's own numbers, and 0 is the background's
    assert len(found.origin.files) == 3
    assert found.encoded_bytes == sum(path.stat().st_size for path in found.origin.files[1:])


def test_crowds_are_kept_to_judge_and_left_out_to_train(tmp_path: Path) -> None:
    found = opened(coco(tmp_path))
    assert [(truth.label, truth.crowd) for truth in found.truths(0)] == [(18, False), (1, False), (18, True)]
    boxes, labels = found.boxes.to_learn(0)
    assert labels.tolist() == [18, 1]
    assert boxes.tolist() == [[4, 2, 24.5, 12], [40, 20, 48, 32]]  # cut where the image ends
    assert found.truths(0)[1].corners == [40, 20, 70, 50]  # and judged as it was stated
    assert found.boxes.to_learn(1)[0].shape == (0, 4)


def test_a_box_without_an_inside_is_not_shown(tmp_path: Path) -> None:
    thin = [{"image_id": 7, "category_id": 1, "bbox": bbox} for bbox in ([5, 5, 0, 9], [60, 5, 9, 9], [1, 1, 2, 2])]
    assert opened(coco(tmp_path, annotations=thin)).boxes.to_learn(0)[0].tolist() == [[1, 1, 3, 3]]


@pytest.mark.parametrize(("numbers", "labels"), [((1, 90), [1, 90]), ((0, 3), [1, 2]), ((1, 91), [1, 2])])
def test_categories_keep_coco_s_numbers_and_others_are_numbered_from_one(
    numbers: tuple[int, int], labels: list[int]
) -> None:
    categories = [{"id": number, "name": f"c{number}"} for number in numbers]
    boxes = [{"image_id": 7, "category_id": number, "bbox": [1, 1, 2, 2]} for number in numbers]
    found = parse_instances(instances(categories=categories, annotations=boxes), "here")
    assert [label for _, label, _ in found.images[0].boxes] == labels
    assert found.classes == {label: f"c{number}" for label, number in zip(labels, numbers, strict=True)}


IMAGE = {"id": 7, "file_name": "a.jpg", "width": 48, "height": 32}
BOX = {"id": 5, "image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": None}, "images should be a list of objects"),
        ({"annotations": [3]}, "annotations should be a list of objects"),
        ({"images": [IMAGE, IMAGE]}, "two of images have the same id"),
        ({"images": [IMAGE, {**IMAGE, "id": 9}]}, "two images have the same file_name"),
        ({"images": [{**IMAGE, "file_name": "../a.jpg"}]}, "no plain name of a file"),
        ({"images": [{**IMAGE, "width": 0}]}, "0 by 32 pixels"),
        ({"images": [{**IMAGE, "height": "32"}]}, "height '32', which is no whole number"),
        ({"annotations": [{**BOX, "image_id": 8}]}, "annotation 5 has image_id 8, which there is not"),
        ({"annotations": [{**BOX, "category_id": 2}]}, "annotation 5 has category_id 2, which there is not"),
        ({"annotations": [{**BOX, "bbox": [1, 2, 3]}]}, "which is not x, y, width and height"),
        ({"annotations": [{**BOX, "bbox": [1, 2, float("nan"), 4]}]}, "which is not x, y, width and height"),
        ({"annotations": [{**BOX, "bbox": [1, 2, -3, 4]}]}, "a bbox of -3 by 4 pixels"),
        ({"annotations": [{**BOX, "iscrowd": 2}]}, "iscrowd '2', which is neither 0 nor 1"),
        ({"categories": [{"id": 1}, {"id": 18}]}, "name 'None', which is no text"),
        ({"annotations": [], "categories": []}, "it has no categories"),
    ],
)
def test_wrong_annotations_are_refused_with_their_place(changes: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError, match=f"here is not laid out as COCO's instances: .*{says}"):
        parse_instances(instances(**changes), "here")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    (folder / "train2017" / "000000000009.jpg").unlink()
    with pytest.raises(
        RequestError, match=r"expected the 2 images that instances_train2017\.json lists; found 1 of them"
    ):
        open_dataset(folder)
    (folder / "annotations" / "instances_val2017.json").unlink()
    with pytest.raises(RequestError, match=r"no complete COCO 2017 folder.*in annotations: instances_train2017\.json"):
        open_dataset(folder, split="test")
    write(folder / "annotations" / "instances_train2017.json", "{")
    with pytest.raises(RequestError, match=r"instances_train2017\.json is no JSON"):
        open_dataset(folder)


@pytest.mark.parametrize(("number", "name"), [(18, "cat"), (17, "dog")])
def test_splits_of_other_categories_or_other_numbers_of_them_are_refused(
    tmp_path: Path, number: int, name: str
) -> None:
    folder = coco(tmp_path)
    other = instances(categories=[{"id": number, "name": name}, {"id": 1, "name": "person"}], annotations=[])
    write(folder / "annotations" / "instances_val2017.json", other)
    with pytest.raises(RequestError, match="other categories for its test split"):
        open_source("fasterrcnn-r50-fpn", "boxes", "coco", {"data": str(folder)}, lambda _: None)


def test_too_few_classes_for_a_data_set_are_refused_with_how_many_would_do(tmp_path: Path) -> None:
    workload = find_workload("fasterrcnn-r50-fpn")
    asked = {"device": "cpu", "size": "tiny", "data": str(coco(tmp_path)), "classes": "3"}
    settings = workload.effective(workload.parse(asked), Machine("cpu", None, 2))
    with pytest.raises(RequestError, match=r"classes=3 is not possible: the data set tells 19 .*; classes=19 would do"):
        open_data(workload, settings, {}, 2, print)


def test_an_image_of_another_size_than_stated_is_refused(tmp_path: Path) -> None:
    folder = coco(tmp_path)
    stated = json.loads(instances())["images"]
    write(
        folder / "annotations" / "instances_train2017.json", instances(images=[{**stated[0], "width": 50}, stated[1]])
    )
    with pytest.raises(RequestError, match=r"0007\.jpg has 48 by 32 pixels; its annotations are of one of 50 by 32"):
        list(box_loader(opened(folder), 2, workers=0, endless=False))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_image_is_named(tmp_path: Path, workers: int) -> None:
    damaged = coco(tmp_path) / "train2017" / "000000000009.jpg"
    damaged.write_bytes(damaged.read_bytes()[:900])
    with pytest.raises(RequestError) as caught:
        list(box_loader(opened(tmp_path), 2, workers=workers, endless=False))
    assert encode(describe(caught.value)) == {
        "kind": "request",
        "message": f"{damaged} (900 bytes) cannot be decoded: Image is incomplete or truncated",
    }


def test_an_image_of_sixteen_bits_is_refused_and_grey_or_seen_through_is_not(tmp_path: Path) -> None:
    """Sixteen bits would become numbers from 0 to 257 where a detector expects 0 to 1."""
    from PIL import Image

    path = coco(tmp_path) / "train2017" / "000000000009.jpg"
    for mode in ("L", "RGBA", "P"):
        Image.new(mode, (30, 40)).save(path, "PNG")
        assert next(box_loader(opened(tmp_path), 2, workers=0, endless=False))[0].dtype == torch.uint8
    Image.new("I;16", (30, 40)).save(path, "PNG")
    with pytest.raises(RequestError, match=r"0009\.jpg has 16 bits a colour: expected 8"):
        next(box_loader(opened(tmp_path), 2, workers=0, endless=False))


def test_a_batch_is_padded_to_its_largest_image(tmp_path: Path) -> None:
    images, sizes, boxes, labels, counts = next(box_loader(opened(coco(tmp_path)), 2, workers=0, endless=False))
    assert (images.dtype, images.shape) == (torch.uint8, (2, 3, 40, 48))
    assert sizes.tolist() == [[32, 48], [40, 30]]
    assert images[0, :, 32:].count_nonzero() == images[1, :, :, 30:].count_nonzero() == 0
    assert boxes.shape == (2, 3, 4)  # as many rows as any image of the set has boxes, crowds among them
    assert counts.tolist() == [2, 0]
    assert labels.tolist() == [[18, 1, 0], [0, 0, 0]]
    floats = as_input("boxes", "coco", (images, sizes, boxes, labels, counts), 0, torch.float32)
    assert floats[0].max() <= 1


def test_mirroring_turns_boxes_with_their_image(tmp_path: Path) -> None:
    image = torch.zeros(3, 10, 20)
    image[:, 2:4, 1:5] = 1
    turned, boxes = mirrored_boxes(image, torch.tensor([[1.0, 2, 5, 4]]))
    left, top, right, bottom = boxes[0].int().tolist()
    assert turned[:, top:bottom, left:right].min() == 1
    assert turned.sum() == image.sum()
    source = DecodedBoxes(opened(tiny_coco(tmp_path)), True, 0, None)
    plain = DecodedBoxes(opened(tmp_path), False, 0, None)
    places = [(epoch, index) for epoch in range(20) for index in range(8)]
    moved = sum(not torch.equal(source._sample(*place)[0], plain._sample(*place)[0]) for place in places)
    assert 0.3 < moved / len(places) < 0.7


@pytest.mark.parametrize("cache", ["off", "memory"])
def test_the_same_seed_gives_the_same_batches_with_any_number_of_workers(tmp_path: Path, cache: str) -> None:
    found = opened(tiny_coco(tmp_path))

    def batches(workers: int, seed: int) -> list[tuple[Tensor, ...]]:
        loader = box_loader(found, 3, workers=workers, cache=cache, seed=seed)
        try:
            return list(itertools.islice(loader, 5))
        finally:
            loader.close()

    first, again, other = batches(0, 1), batches(2, 1), batches(0, 2)
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))
    assert any(not torch.equal(one[1], two[1]) for one, two in zip(first, other, strict=True))


def test_a_run_trains_on_some_samples_and_is_judged_on_others(tmp_path: Path) -> None:
    found = opened(tiny_coco(tmp_path))
    some = chosen(found, 5)
    assert isinstance(some, BoxedImages)
    assert len(some) == len(some.files) == len(some.boxes.sizes) == 5
    for index, file in enumerate(some.files):
        assert some.truths(index) == found.truths(found.files.index(file))
    settings: dict[str, str | int | bool] = {"workers": 0, "pin_memory": False, "augment": True}
    fit_settings(settings, {"workers": 0}, some, 2)
    assert (settings["decode"], settings["cache"]) == ("cpu", "off")
    assert next(training_batches(some, settings, 2, CPU, 0))[0].shape[0] == 2
    assert sum(len(batch[0]) for batch in evaluation_batches(some, settings, 2, CPU)) == 5


def test_held_out_images_reach_the_reference_in_fp32(tmp_path: Path) -> None:
    """In bf16 inference the step's own batches are bf16, and the model that they are compared with is not."""
    workload = find_workload("fasterrcnn-r50-fpn")
    asked = workload.parse({"size": "tiny", "mode": "infer", "precision": "bf16", "data": str(tiny_coco(tmp_path)),
                            "batch_size": 2, "workers": 0})  # fmt: skip
    settings = workload.effective(asked, Machine("cpu", None, 1))
    opened, settings = open_data(workload, settings, asked, 1, lambda _: None)
    inputs = Inputs(workload, settings, CPU, opened=opened)
    assert settings["classes"] == 4  # three to tell apart, and the background
    task = build_task(workload, settings)
    step = Step(task, settings, CPU)
    held_out = inputs.held_out(task, 4, 0)
    assert (held_out[0].dtype, len(held_out[0])) == (torch.float32, 4)
    assert reference_answer(task, step.model, held_out).isfinite().all()
    step.finish_model()
    assert next(inputs.training(task, step, 2, 0))[0].dtype == torch.bfloat16
    assert inputs.shapes.document() is not None
    inputs.close()


def test_found_boxes_are_judged_against_the_stated_ones(tmp_path: Path) -> None:
    found = opened(tiny_coco(tmp_path))
    rows = torch.zeros(len(found), 10, 6)
    for index in range(len(found)):
        for at, truth in enumerate(found.truths(index)):
            rows[index, at] = torch.tensor([*truth.corners, 0.9, truth.label])
    assert found.scores({"found": rows})["map"] == pytest.approx(1.0)
    rows[:, :, 5] += 1  # every class told wrong
    assert found.scores({"found": rows})["map"] < 0.3


def test_the_spread_of_shapes_is_counted() -> None:
    assert Shapes().document() is None
    shapes = Shapes()
    for height, count in ((30, 0), (40, 2), (40, 4)):
        batch = (torch.zeros(1, 3, 40, 50), torch.tensor([[height, 50]]), Tensor(), Tensor(), torch.tensor([count]))
        assert shapes.seen(batch) is batch
    document = shapes.document()
    assert document is not None
    assert document["images"] == 3
    assert document["boxes"] == {"mean": 2.0, "least": 0, "most": 4, "p5": 0, "p50": 2, "p95": 4}
    assert document["height"]["p50"] == 40
    assert document["padding_share"] == pytest.approx(10 / 120, abs=1e-6)
