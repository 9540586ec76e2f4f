"""Images of a data set at the size that a detector takes: pixels, boxes and the truths that answers are held to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchvision.io import encode_png

from prony_node.data.dataset import Origin
from prony_node.data.detection import BoxedImages, BoxTable, box_loader, scaled_boxes, scaled_size


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (800, 1067)), (640, 480, (1067, 800)), (300, 640, (625, 1333)), (1600, 1600, (800, 800))],
)
def test_the_shorter_side_has_its_length_unless_the_longer_one_is_too_long(
    height: int, width: int, expected: tuple[int, int]
) -> None:
    assert scaled_size(height, width, (800, 1333)) == expected


def test_a_box_stays_on_what_it_surrounds() -> None:
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    image[:, 10:20, 8:32] = 200
    scaled, boxes = scaled_boxes(image, torch.tensor([[8.0, 10, 32, 20]]), (60, 80))
    assert scaled.shape == (3, 60, 80)
    assert scaled.dtype == torch.uint8
    assert boxes.tolist() == [[16, 20, 64, 40]]
    bright = (scaled[0] > 100).nonzero()
    assert bright.amin(0).tolist() == [20, 16]
    assert (bright.amax(0) + 1).tolist() == [40, 64]


def test_a_loader_gives_scaled_images_and_answers_are_judged_at_that_size(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(bytes(encode_png(torch.full((3, 30, 40), 90, dtype=torch.uint8)).numpy().tobytes()))
    table = BoxTable(
        corners=torch.tensor([[8.0, 10, 32, 20]]),
        labels=torch.tensor([1]),
        crowds=torch.tensor([False]),
        ends=torch.tensor([1]),
        sizes=torch.tensor([[30, 40]]),
    )
    dataset = BoxedImages(Origin("coco", "train", tmp_path, (file,)), {1: "box"}, [file], 1, table)
    dataset.scale_to = (60, 70)  # by 1.75, so that the longer side keeps to it
    source = box_loader(dataset, 1, workers=0, augment=False, endless=False)
    images, sizes, boxes, _labels, counts = next(source)
    source.close()
    assert images.shape == (1, 3, 52, 70)
    assert sizes.tolist() == [[52, 70]]
    assert counts.tolist() == [1]
    (truth,) = dataset.truths(0)
    assert boxes[0, 0].tolist() == pytest.approx(list(truth.corners), rel=1e-5)
    assert list(truth.corners) == pytest.approx([14, 10 * 52 / 30, 56, 20 * 52 / 30], rel=1e-5)
    found = torch.tensor([[[*truth.corners, 0.9, 1.0]]])
    assert dataset.scores({"found": found}) == {"map": 1.0}
