"""A run's data set: found or made, the right kind, as many samples as asked, and said so in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_sets
import torch

from prony_node.contract.errors import RequestError
from prony_node.data.batches import as_input, evaluation_batches, preparation, training_batches
from prony_node.data.dataset import Origin, Pixels
from prony_node.data.generated_folder import DEFAULT_SAMPLES
from prony_node.data.loader import Encoded
from prony_node.data.source import chosen, fit_settings, open_source

CPU = torch.device("cpu")


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def pixels(count: int = 40, channels: int = 1, kind: str = "mnist") -> Pixels:
    images = torch.randint(256, (count, channels, 28, 28), dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return Pixels(Origin(kind, "train", Path(), ()), [str(n) for n in range(10)], images, labels)


def test_a_folder_of_images_is_opened_and_described(tmp_path: Path) -> None:
    folder = small_sets.imagenet(tmp_path / "set")
    opened = open_source("resnet50", "images", "imagenet", {"data": str(folder)}, quiet)
    assert (len(opened.train), len(opened.test)) == (12, 6)
    about = opened.about
    assert (about["kind"], about["samples"], about["test_samples"], about["classes"]) == ("imagenet", 12, 6, 3)
    assert about["fingerprint"]
    assert about["bytes"] > 0
    assert about["staged"] is about["generated"] is None


def test_a_staged_set_is_read_from_its_copy(tmp_path: Path) -> None:
    folder = small_sets.imagenet(tmp_path / "set")
    target = tmp_path / "local"
    said: list[str] = []
    opened = open_source("resnet50", "images", "", {"data": str(folder), "stage": str(target)}, said.append)
    assert opened.about["folder"] == str(target)
    assert opened.about["staged"]["files"] == 18
    assert opened.seconds["stage"] > 0
    assert isinstance(opened.train, Encoded)
    assert opened.train.origin.files[0].is_relative_to(target)
    assert any("staging" in line for line in said)


def test_a_set_of_another_kind_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    small_sets.write(tmp_path / "set" / "a.txt", "word " * 5000)
    settings: dict[str, Any] = {"data": str(tmp_path / "set"), "stage": str(tmp_path / "local")}
    with pytest.raises(RequestError, match="looks like text, which resnet50 cannot learn from"):
        open_source("resnet50", "images", "imagenet", settings, quiet)
    assert not (tmp_path / "local").exists()


def test_what_is_no_data_set_is_answered_with_what_the_workload_reads(tmp_path: Path) -> None:
    """Not with every layout there is, and not with one that a stray folder of images resembles."""
    for place, found in (("void", "found an empty folder"), ("own", "looks like food101"), ("a.json", "looks like")):
        if place == "own":
            small_sets.write(tmp_path / place / "images" / "1.jpg", b"")
        elif place == "void":
            (tmp_path / place).mkdir()
        else:
            small_sets.write(tmp_path / place, "{}")
        with pytest.raises(RequestError) as caught:
            open_source("fasterrcnn-r50-fpn", "boxes", "coco", {"data": str(tmp_path / place)}, quiet)
        assert found in str(caught.value)
        assert "train2017/, val2017/ and annotations/instances_*.json (coco)" in str(caught.value)
        assert "cifar" not in str(caught.value)


def test_generated_data_is_made_once_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_DATA", str(tmp_path))
    said: list[str] = []
    settings: dict[str, Any] = {"data": "generated", "data_samples": 40}
    opened = open_source("gpt-tiny", "tokens", "tokens", settings, said.append, sequence=64)
    assert opened.about["folder"].startswith(str(tmp_path))
    assert opened.about["generated"]["samples"] == 40
    assert settings["data_format"] == "files"  # what is effective is in the record
    assert "GB in" in said[0]
    assert opened.about["vocabulary"] == 50_257
    again: list[str] = []
    open_source("gpt-tiny", "tokens", "tokens", settings, again.append, sequence=64)
    assert again == []


def test_a_tiny_model_does_not_wait_for_the_data_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRONY_DATA", str(tmp_path))
    settings: dict[str, Any] = {"data": "generated", "size": "tiny"}
    opened = open_source("gpt-117m", "tokens", "tokens", settings, quiet, sequence=64)
    assert opened.about["generated"]["samples"] == settings["data_samples"] == DEFAULT_SAMPLES["tokens"] // 10


def test_fewer_samples_are_drawn_from_all_over_the_set(tmp_path: Path) -> None:
    folder = small_sets.imagenet(tmp_path / "set", classes=4, each=8)
    opened = open_source("resnet50", "images", "", {"data": str(folder), "data_samples": 16}, quiet)
    assert len(opened.train) == 16
    assert len(set(opened.train.labels.tolist())) == 4
    assert len(opened.test) == 8  # what is judged on stays whole, unless that is asked for
    fewer: dict[str, Any] = {"data": str(folder), "test_samples": 5}
    assert len(open_source("resnet50", "images", "", fewer, quiet).test) == 5
    assert isinstance(opened.train, Encoded)
    whole = open_source("resnet50", "images", "", {"data": str(folder)}, quiet).train
    assert isinstance(whole, Encoded)
    everything = {(whole.read(at), int(whole.labels[at])) for at in range(len(whole))}
    assert {(opened.train.read(at), int(opened.train.labels[at])) for at in range(16)} <= everything


def test_chosen_pixels_keep_their_labels() -> None:
    source = pixels()
    picked = chosen(source, 15)
    assert isinstance(picked, Pixels)
    for image, label in zip(picked.images, picked.labels, strict=True):
        at = next(n for n in range(len(source)) if torch.equal(source.images[n], image))
        assert int(source.labels[at]) == int(label)


def test_settings_follow_from_the_kind_of_the_set(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": 1, "prefetch": 4, "pin_memory": False, "augment": True}
    fit_settings(settings, {}, pixels(), cores=8)
    assert settings == {"cache": "device", "augment": True}
    files = open_source("x", "images", "", {"data": str(small_sets.imagenet(tmp_path))}, quiet).train
    settings = {"workers": 1, "prefetch": 4, "pin_memory": False, "augment": True}
    fit_settings(settings, {}, files, cores=8)
    assert (settings["workers"], settings["decode"], settings["cache"]) == (8, "cpu", "off")
    settings = {"workers": 3, "prefetch": 4, "cache": "device"}
    with pytest.raises(RequestError, match="small sets of pixels"):
        fit_settings(settings, settings, files, cores=8)
    with pytest.raises(RequestError, match="nothing to decode"):
        fit_settings({"decode": "cpu"}, {"decode": "cpu"}, pixels(), cores=8)
    with pytest.raises(RequestError, match="nothing is loaded"):
        fit_settings({"workers": 2}, {"workers": 2}, pixels(), cores=8)


@pytest.mark.parametrize("cache", ["device", "off"])
def test_small_pictures_reach_the_model_as_it_takes_them(cache: str) -> None:
    source = pixels()
    settings: dict[str, Any] = {"cache": cache, "augment": False, "image_size": 32, "workers": 0, "pin_memory": False}
    batches = training_batches(source, settings, 8, CPU, seed=0)
    images, labels = preparation("images", source, settings, CPU, torch.float32, 1)(next(batches))
    batches.close()
    assert (images.shape, images.dtype, labels.shape) == ((8, 3, 32, 32), torch.float32, (8,))
    assert torch.equal(images[:, 0], images[:, 1])  # grey has the same in every channel
    raw = ((images[:, :1] * 0.3081 + 0.1307) * 255).mean()
    assert abs(float(raw) - float(source.images.float().mean())) < 20  # noise of a normal range, not of another


def test_grey_pictures_keep_their_range() -> None:
    (images,) = as_input("grey", "mnist", next(iter([(pixels().images, pixels().labels)])), 0, torch.float32)
    assert 0 <= float(images.min()) < float(images.max()) <= 1


def test_augmented_pictures_differ_and_the_test_split_does_not() -> None:
    source = pixels()
    settings: dict[str, Any] = {"cache": "off", "augment": True, "image_size": 28, "workers": 0, "pin_memory": False}
    prepare = preparation("images", source, settings, CPU, torch.float32, 1)
    batch = (source.images[:8], source.labels[:8])
    assert not torch.equal(prepare(batch)[0], prepare(batch)[0])
    passes = [list(evaluation_batches(source, settings, 16, CPU)) for _ in range(2)]
    assert [len(batch[0]) for batch in passes[0]] == [16, 16, 8]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(*passes, strict=True))
