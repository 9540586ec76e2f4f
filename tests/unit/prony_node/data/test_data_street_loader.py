"""Street scenes and masks: made, found in Cityscapes' own layout, cropped and tiled together; what is wrong is said."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from small_sets import cityscapes, write
from torch import Tensor

from prony_node.backends.torch.model import Inputs, open_data
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.data import synthetic
from prony_node.data.batches import as_input, evaluation_batches, training_batches
from prony_node.data.pictures import label_colours, make_scene
from prony_node.data.segmentation import (
    CLASSES,
    IGNORED,
    LABELS,
    StreetScenes,
    region_sampler,
    streets_to_test,
    streets_to_train,
    trained_ids,
    window_to_train,
    windows_to_test,
)
from prony_node.data.source import fit_settings, open_dataset, open_source
from prony_node.data.synthetic import HostSamples
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")
Batch = tuple[Tensor, ...]


def opened(folder: Path, split: str = "train") -> StreetScenes:
    found = open_dataset(folder, split=split)
    assert isinstance(found, StreetScenes)
    return found


def taken(batches: Any, count: int = 1000) -> list[Batch]:
    try:
        return list(itertools.islice(batches, count))
    finally:
        batches.close()


# Synthetic


def test_synthetic_scenes_have_regions_and_pixels_that_are_ignored() -> None:
    sample = region_sampler(19, 64, 96)
    images, masks = sample(torch.Generator().manual_seed(3), 6)
    assert (images.shape, masks.shape, masks.dtype) == ((6, 3, 64, 96), (6, 64, 96), torch.int64)
    assert set(masks.unique().tolist()) <= {*range(19), IGNORED}
    assert 0.01 < float((masks == IGNORED).float().mean()) < 0.25
    assert float((masks[:, :, 1:] == masks[:, :, :-1]).float().mean()) > 0.85  # regions, not single pixels
    assert all(8 < len(mask.unique()) <= 20 for mask in masks)
    again = sample(torch.Generator().manual_seed(3), 6)
    assert torch.equal(again[0], images)
    assert torch.equal(again[1], masks)


def test_the_colours_of_synthetic_classes_do_not_change_with_the_seed() -> None:
    """Means of some scenes name the class of regions in others, and one pixel alone does not give it away."""
    sample = region_sampler(5, 64, 64)
    images, masks = sample(torch.Generator().manual_seed(1), 8)
    means = torch.stack([images.permute(0, 2, 3, 1)[masks == number].mean(0) for number in range(5)])
    others, theirs = sample(torch.Generator().manual_seed(2), 8)
    pixels = others.permute(0, 2, 3, 1)
    for number in range(5):
        mean = pixels[theirs == number].mean(0)
        assert int((means - mean).square().sum(1).argmin()) == number
    alone = (means.view(5, 1, 3) - pixels[theirs != IGNORED].view(1, -1, 3)).square().sum(2).argmin(0)
    assert float((alone == theirs[theirs != IGNORED]).float().mean()) < 0.8


def test_large_samples_are_held_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "STOCK_BYTES", 40 * 32 * 32 * (3 * 4 + 8))
    samples = HostSamples(region_sampler(19, 32, 32), 1000, 0)
    assert torch.equal(samples[43][0], samples[3][0])
    assert not torch.equal(samples[4][0], samples[3][0])


# The layout


def test_the_label_table_is_cityscapes_own() -> None:
    table = trained_ids().tolist()
    assert len(table) == len(LABELS) == 34
    assert [number for number, trained in enumerate(table) if trained != IGNORED] == [
        7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33,
    ]  # fmt: skip
    assert [table[LABELS.index(name)] for name in CLASSES] == list(range(19))
    assert (LABELS[7], LABELS[26], CLASSES[13]) == ("road", "car", "car")


def test_both_splits_are_opened_as_they_lie(tmp_path: Path) -> None:
    folder = cityscapes(tmp_path)
    write(folder / "gtFine" / "train" / "train0" / "train0_000000_000019_gtFine_color.png", b"beside it")
    train, test = opened(folder), opened(folder, "test")
    assert (train.kind, len(train), len(test), train.class_count) == ("cityscapes", 5, 2, 19)
    assert train.encoded_bytes == sum(path.stat().st_size for path in train.origin.files)
    image, mask = make_scene(2, 48, 96)  # the second of the first town
    assert (train.images.read(1), train.masks.read(1)) == (image, mask)
    assert len(train.origin.files) == 10
    assert train.fingerprint() != test.fingerprint()


def lose(folder: Path, pattern: str) -> None:
    for path in list(folder.glob(pattern)):
        path.unlink()


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            "gtFine/train/train1/*1_*",
            r"an image and a mask of each scene in train; found \d images without a mask \(train1",
        ),
        ("leftImg8bit/train/train0/*", r"found 3 masks without an image \(train0/train0_000000_000019, "),
        ("gtFine/train/*/*", "expected leftImg8bit/train/CITY/.* found 5 images and 0 masks in train"),
        ("*/train/*/*", "found leftImg8bit with train, val and gtFine with train, val"),
    ],
)
def test_an_incomplete_folder_is_answered_with_what_is_missing(tmp_path: Path, lost: str, said: str) -> None:
    folder = cityscapes(tmp_path)
    lose(folder, lost)
    with pytest.raises(RequestError, match=said):
        open_dataset(folder)
    assert len(open_dataset(folder, split="test")) == 2  # the other split is whole


def test_other_workloads_cannot_learn_from_it_nor_these_from_others(tmp_path: Path) -> None:
    folder = cityscapes(tmp_path / "set")
    with pytest.raises(RequestError, match="looks like cityscapes, which resnet50 cannot learn from"):
        open_source("resnet50", "images", "imagenet", {"data": str(folder)}, lambda _: None)
    found = open_source("segformer-b4", "masks", "", {"data": str(folder), "data_samples": 3}, lambda _: None)
    assert (found.about["kind"], found.about["samples"], found.about["classes"]) == ("cityscapes", 3, 19)
    assert isinstance(found.train, StreetScenes)
    whole = opened(folder)
    pairs = {(whole.images.read(at), whole.masks.read(at)) for at in range(5)}
    assert {(found.train.images.read(at), found.train.masks.read(at)) for at in range(3)} <= pairs
    write(tmp_path / "text" / "a.txt", "word " * 5000)
    with pytest.raises(
        RequestError, match=r"looks like text, which segformer-b4 cannot learn from; it reads leftImg8bit/"
    ):
        open_source("segformer-b4", "masks", "", {"data": str(tmp_path / "text")}, lambda _: None)


# Loading


def aligned(images: Tensor, masks: Tensor) -> float:
    """How far colours are from those of their labels, the light of each scene set apart."""
    colours = torch.full((256, 3), torch.nan)
    colours[: len(CLASSES)] = label_colours()[[LABELS.index(name) for name in CLASSES]]
    off = images.permute(0, 2, 3, 1).float() - colours[masks.long()]
    off = off - off.flatten(1, 2).nanmedian(1).values.view(-1, 1, 1, 3)
    return float(off.abs().nanmean())


def test_image_and_mask_are_cropped_and_mirrored_together(tmp_path: Path) -> None:
    train = opened(cityscapes(tmp_path))
    alone = taken(streets_to_train(train, 5, height=32, width=40, workers=0, seed=3), 4)
    assert {(images.shape, masks.shape) for images, masks in alone} == {((5, 3, 32, 40), (5, 32, 40))}
    assert all(aligned(*batch) < 5 for batch in alone)
    assert aligned(alone[0][0].flip(-1), alone[0][1]) > 15  # which the check would show
    with_workers = taken(streets_to_train(train, 5, height=32, width=40, workers=2, seed=3, cache="memory"), 4)
    assert all(
        torch.equal(a, b)
        for one, other in zip(alone, with_workers, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    other = taken(streets_to_train(train, 5, height=32, width=40, workers=0, seed=4), 1)
    assert not torch.equal(alone[0][0], other[0][0])
    assert not torch.equal(alone[0][0].sort(0).values, alone[1][0].sort(0).values)  # an epoch later, other parts


def test_crops_lie_anywhere_within_and_without_augmenting_in_the_middle() -> None:
    windows = [window_to_train(1024, 2048, 512, 1024, True, seed) for seed in range(300)]
    assert all(0 <= window.top <= 512 and 0 <= window.left <= 1024 for window in windows)
    assert min(window.top for window in windows) < 20 < 490 < max(window.top for window in windows)
    assert 100 < sum(window.flip for window in windows) < 200
    middle = window_to_train(1024, 2048, 512, 1024, False, 5)
    assert (middle.top, middle.left, middle.flip) == (256, 512, False)
    small = window_to_train(20, 30, 32, 32, True, 0)
    assert (small.top, small.left) == (0, 0)


@pytest.mark.parametrize(("rows", "columns"), [(48, 96), (50, 70), (32, 32), (20, 100), (33, 31), (1, 1)])
def test_tiles_judge_every_pixel_once(rows: int, columns: int) -> None:
    road, numbers = LABELS.index("road"), torch.arange(rows * columns).view(1, rows, columns)
    judged: list[int] = []
    for window in windows_to_test(rows, columns, 32, 32):
        part, labels = window.cut(numbers, torch.full((rows, columns), road, dtype=torch.uint8))
        assert part.shape[1:] == labels.shape == (32, 32)
        judged += part[0][labels == 0].tolist()
    assert sorted(judged) == list(range(rows * columns))


def test_a_test_split_is_tiled_in_order_and_the_same_for_any_batch(tmp_path: Path) -> None:
    test = opened(cityscapes(tmp_path, val=3), "test")
    settings = {"crop_height": 32, "crop_width": 40, "workers": 1, "pin_memory": False}
    by_batch = [taken(evaluation_batches(test, settings, rows, CPU)) for rows in (1, 4, 100)]
    assert [[len(batch[0]) for batch in batches] for batches in by_batch] == [[1] * 18, [4] * 4 + [2], [18]]
    joined = [tuple(torch.cat(part) for part in zip(*batches, strict=True)) for batches in by_batch]
    assert all(torch.equal(a, b) for other in joined[1:] for a, b in zip(joined[0], other, strict=True))
    images, masks = as_input("masks", "cityscapes", joined[0], 0, torch.float32)
    assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
    assert abs(float(images.mean())) < 3


def test_a_small_scene_is_filled_up_with_what_is_ignored(tmp_path: Path) -> None:
    train = opened(cityscapes(tmp_path))
    settings = {
        "crop_height": 64,
        "crop_width": 128,
        "workers": 0,
        "pin_memory": False,
        "cache": "off",
        "augment": False,
    }
    ((images, masks),) = taken(training_batches(train, settings, 2, CPU, seed=0), 1)
    assert images.shape == (2, 3, 64, 128)
    assert bool((masks[:, 48:] == IGNORED).all())
    assert bool((images[:, :, :, 96:] == 0).all())
    assert bool((masks[:, :48, :96] != IGNORED).any())


def test_masks_that_are_no_label_ids_are_refused(tmp_path: Path) -> None:
    folder = cityscapes(tmp_path, train=1)
    path = next(folder.glob("gtFine/train/*/*_labelIds.png"))
    from PIL import Image

    Image.new("L", (96, 48), 255).save(path)  # as training ids have them
    with pytest.raises(RequestError, match=rf"{path.name} holds 255: expected label ids from 0 to 33"):
        taken(streets_to_train(opened(folder), 1, height=32, width=32, workers=0), 1)
    Image.new("L", (96, 40), 7).save(path)
    with pytest.raises(RequestError, match=rf"{path.name} has 96x40 pixels, and its image has 96x48"):
        taken(streets_to_train(opened(folder), 1, height=32, width=32, workers=0), 1)
    Image.new("RGB", (96, 48), 7).save(path)
    with pytest.raises(RequestError, match=rf"{path.name} has 3 x 8 bits per pixel: expected a mask of 8"):
        taken(streets_to_test(opened(folder), 1, height=32, width=32, workers=0), 1)
    write(path, b"no image")
    with pytest.raises(RequestError, match=rf"{path.name} \(8 bytes\) cannot be decoded"):
        taken(streets_to_train(opened(folder), 1, height=32, width=32, workers=0), 1)
    with pytest.raises(RequestError, match="batch_size=2 does not fit a set of 1 samples"):
        streets_to_train(opened(folder), 2, height=32, width=32, workers=0)


def test_settings_follow_from_scenes(tmp_path: Path) -> None:
    train = opened(cityscapes(tmp_path, train=1))
    settings: dict[str, Any] = {"workers": 1, "prefetch": 4, "pin_memory": False, "augment": True}
    fit_settings(settings, {}, train, cores=6)
    assert settings == {
        "workers": 6, "prefetch": 2, "pin_memory": False, "augment": True, "decode": "cpu", "cache": "off",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["segformer-b4", "fasterrcnn-r50-fpn", "dino-swin-l"])
@pytest.mark.parametrize("asked", [{"decode": "device"}, {"decode": "both"}, {"cache": "device"}])
def test_what_workers_alone_decode_is_refused_elsewhere_before_anything_starts(
    name: str, asked: dict[str, str]
) -> None:
    with pytest.raises(RequestError, match=f"{name} (has decode=cpu|takes cache=memory or off)"):
        find_workload(name).parse({"data": "./set", **asked})


def test_a_scene_to_test_of_one_crop_is_refused_where_a_model_normalises_over_images(tmp_path: Path) -> None:
    cityscapes(tmp_path, train=2, val=1, height=64, width=64)
    for name, refused in (("deeplabv3plus-r101", True), ("segformer-b4", False)):
        workload = find_workload(name)
        asked = {"device": "cpu", "size": "tiny", "data": str(tmp_path), "batch_size": "2", "workers": "0"}
        settings = workload.effective(workload.parse(asked), Machine("cpu", None, 2))
        opened, settings = open_data(workload, settings, {}, 2, print)
        inputs = Inputs(workload, settings, CPU, opened=opened)
        task = build_task(workload, settings)
        if refused:
            with pytest.raises(RequestError, match="has 1 image to test with; 2 are needed: a batch norm"):
                inputs.held_out(task, 16, seed=1)
        else:
            assert len(inputs.held_out(task, 16, seed=1)[0]) == 1
