"""Generated street scenes have Cityscapes' shares, sizes and names, are made once and gone on with when interrupted."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from prony_node.contract import RequestError
from prony_node.data import generated, pictures
from prony_node.data.dataset import hash_file, verify
from prony_node.data.generated import GenerationRequest, estimate, generate
from prony_node.data.generated_folder import DEFAULT_SAMPLES, generated_folder
from prony_node.data.pictures import SCENE_BYTES, SHARES, WITH_CLASS, Painter, make_scene
from prony_node.data.segmentation import CLASSES, LABELS, StreetScenes, label_id
from prony_node.data.source import open_dataset


def painted(seeds: range, height: int = 128) -> torch.Tensor:
    """Pixels of each label, over all scenes."""
    counts = torch.zeros(len(LABELS))
    for seed in seeds:
        mask = Painter(random.Random(seed), height, 2 * height).paint()
        counts += torch.frombuffer(bytearray(mask.tobytes()), dtype=torch.uint8).bincount(minlength=len(LABELS))
    return counts


def test_classes_have_their_published_shares() -> None:
    counts = painted(range(400))
    with_class = sum(float(counts[label_id(name)]) for name in CLASSES)
    assert sum(SHARES.values()) == pytest.approx(1, abs=0.01)
    assert with_class / float(counts.sum()) == pytest.approx(WITH_CLASS, abs=0.02)
    for name, share in SHARES.items():
        found = float(counts[label_id(name)]) / with_class
        common = share > 0.01
        assert found == pytest.approx(share, rel=0.2 if common else 0.6), name


def test_a_scene_has_the_size_of_a_real_one_and_is_the_same_for_a_seed() -> None:
    image, mask = make_scene(1)
    assert len(image) + len(mask) == pytest.approx(SCENE_BYTES, rel=0.15)
    for data, mode in ((image, "RGB"), (mask, "L")):
        picture = Image.open(io.BytesIO(data))
        assert (picture.size, picture.mode, picture.format) == ((2048, 1024), mode, "PNG")
    small = make_scene(1, 32, 64)
    assert small == make_scene(1, 32, 64) != make_scene(2, 32, 64)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "make_scene", partial(make_scene, height=32, width=64))
    monkeypatch.setattr(generated, "PART_STREETS", 4)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".prony-"))
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


@pytest.mark.usefixtures("small")
def test_a_generated_set_opens_as_cityscapes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    made = generate("cityscapes", tmp_path, 20, processes=1, report=lambda *now: told.append(now))
    train, test = (open_dataset(tmp_path, split=split) for split in ("train", "test"))
    assert isinstance(train, StreetScenes)
    assert (train.kind, len(train), len(test), made["files"]) == ("cityscapes", 20, 3, 46)
    assert told[-1] == (23, 23)
    towns = {split: {path.name for path in (tmp_path / "gtFine" / split).iterdir()} for split in ("train", "val")}
    assert (len(towns["train"]), len(towns["val"])) == (18, 3)
    assert not towns["train"] & towns["val"]
    assert (tmp_path / "leftImg8bit/train/town01/town01_000001_000019_leftImg8bit.png").is_file()
    assert verify(tmp_path) == made
    assert len(set(contents(tmp_path).values())) == 46  # no scene is another's


@pytest.mark.usefixtures("small")
def test_what_was_begun_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate("cityscapes", tmp_path / "whole", 10, processes=1)
    calls: list[int] = []
    make = generated.make_part

    def fail_at_second(folder: Path, request: GenerationRequest, part: generated.DataPart) -> list[generated.Made]:
        calls.append(part.number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return make(folder, request, part)

    monkeypatch.setattr(generated, "make_part", fail_at_second)
    with pytest.raises(KeyboardInterrupt):
        generate("cityscapes", tmp_path / "begun", 10, processes=1)
    with pytest.raises(RequestError, match="is not finished"):
        open_dataset(tmp_path / "begun")
    generate("cityscapes", tmp_path / "begun", 10, processes=1)
    assert calls == [0, 1, 1, 2, 3]
    assert contents(tmp_path / "begun") == contents(tmp_path / "whole")
    mask = next((tmp_path / "begun").glob("gtFine/val/*/*.png"))
    mask.write_bytes(mask.read_bytes()[:-1] + b"x")
    with pytest.raises(RequestError, match="1 of 22 files"):
        verify(tmp_path / "begun")


def test_the_published_counts_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEFAULT_SAMPLES["cityscapes"] == 2975
    assert GenerationRequest("cityscapes", 2975, 0, "files", 0).test_samples == 500
    assert GenerationRequest("imagenet", 2975, 0, "files", 5).test_samples == 148
    monkeypatch.setattr(pictures, "make_scene", lambda _: (b"", b""))  # the time is another test's
    expected = estimate("cityscapes", 2975, processes=4)
    assert expected.bytes == pytest.approx(3475 * 2.31e6, rel=0.01)
    assert expected.seconds is not None
    assert generated_folder("cityscapes", 10, "shards", 0).name == "cityscapes-files-10-seed0"


def test_images_and_masks_fit_and_classes_can_be_told_by_colour() -> None:
    """Whatever the scene's light, the nearest colour names most pixels: a model has something to find."""
    colours = pictures.label_colours()
    for seed in range(3):
        mask = Painter(random.Random(seed), 64, 128).paint()
        labels = torch.frombuffer(bytearray(mask.tobytes()), dtype=torch.uint8).view(64, 128).long()
        pixels = pictures.coloured(labels.to(torch.uint8), seed).float()
        light = (pixels - colours[labels]).flatten(0, 1).median(0).values
        nearest = (pixels.view(-1, 1, 3) - light - colours).square().sum(2).argmin(1)
        assert float((nearest == labels.flatten()).float().mean()) > 0.8
