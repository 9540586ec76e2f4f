"""Generated data has the size of the real, is made once, survives being killed, and can be learned."""

from __future__ import annotations

import builtins
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import need_proc
from prony_node.contract import RequestError
from prony_node.data import generated
from prony_node.data.dataset import MANIFEST, hash_file, verify
from prony_node.data.detection import COCO_SCENERY, BoxedImages, box_loader, class_textures
from prony_node.data.generated import estimate, generate
from prony_node.data.loader import Encoded, decode_on_cpu
from prony_node.data.pictures import LOOKS, class_patterns, made_scene, make_image, scene_jpeg
from prony_node.data.source import open_dataset
from prony_node.data.texts import Packed

SRC = Path(generated.__file__).parents[2]


@pytest.mark.parametrize("kind", ["imagenet", "food101"])
def test_images_have_the_real_mean_size(kind: str) -> None:
    """Reading and decoding cost what a file's bytes and pixels cost: both must be the real set's."""
    look = LOOKS[kind]
    patterns = class_patterns(16)
    files = [make_image(look, patterns, seed % 16, seed) for seed in range(120)]
    assert sum(map(len, files)) / len(files) == pytest.approx(look.mean_bytes, rel=0.15)
    assert sum(shape[2] for shape in look.shapes) == pytest.approx(1)
    assert files[3] == make_image(look, patterns, 3, 3)


def test_scenes_have_the_real_mean_size() -> None:
    look, textures = LOOKS["coco"], class_textures(81)
    scenes = [made_scene(COCO_SCENERY, 80, seed) for seed in range(40)]
    files = [scene_jpeg(look, scene, textures, seed) for seed, scene in enumerate(scenes)]
    assert sum(map(len, files)) / len(files) == pytest.approx(look.mean_bytes, rel=0.15)
    assert sum(shape[2] for shape in look.shapes) == pytest.approx(1)
    assert files[3] == scene_jpeg(look, scenes[3], textures, 3)


def test_generated_scenes_open_as_coco_does(tmp_path: Path) -> None:
    generate("coco", tmp_path, 3, classes=3, processes=1)
    train, test = (open_dataset(tmp_path, split=split) for split in ("train", "test"))
    assert isinstance(train, BoxedImages)
    assert (train.kind, len(train), len(test), train.class_count, train.label_count) == ("coco", 3, 1, 3, 4)
    assert verify(tmp_path)["files"] == 4 + 2
    images, sizes, boxes, _, counts = next(box_loader(train, 3, workers=0, augment=False, endless=False))
    assert counts.tolist() == [len(train.truths(index)) for index in range(3)]
    assert max(sizes.flatten().tolist()) <= 640
    textures = class_textures(4)
    for index in range(3):  # the last box of an image is painted over by none
        left, top, right, bottom = boxes[index, counts[index] - 1].int().tolist()
        seen = images[index, :, top:bottom, left:right].float().mean((1, 2)) / 255
        label = train.truths(index)[-1].label
        assert int((textures.mean((2, 3)) - seen).norm(dim=1).argmin()) == label
    assert generate("coco", tmp_path, 3, classes=3, form="shards")["form"] == "files"  # it has no other


def test_sizes_are_those_stated() -> None:
    width, height = (sum(shape[axis] * shape[2] for shape in LOOKS["imagenet"].shapes) for axis in (0, 1))
    assert (width, height) == (pytest.approx(469, rel=0.02), pytest.approx(387, rel=0.02))
    assert max(max(shape[:2]) for shape in LOOKS["food101"].shapes) == 512


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".prony-"))
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "PART_IMAGES", 5)
    monkeypatch.setattr(generated, "PART_FILES", 5)
    monkeypatch.setattr(generated, "PART_SEQUENCES", 8)


@pytest.mark.parametrize(("kind", "form"), [("imagenet", "files"), ("food101", "files"), ("imagenet", "shards")])
@pytest.mark.usefixtures("small")
def test_a_generated_set_opens_as_the_real_one_does(tmp_path: Path, kind: str, form: str) -> None:
    told: list[tuple[int, int]] = []
    made = generate(kind, tmp_path, 12, form=form, classes=4, processes=1, report=lambda *now: told.append(now))
    train, test = (open_dataset(tmp_path, split=split) for split in ("train", "test"))
    assert isinstance(train, Encoded)
    assert (train.kind, len(train), train.class_count) == ("shards" if form == "shards" else kind, 12, 4)
    assert train.labels.bincount().tolist() == [3] * 4
    assert len(test) == 1
    assert decode_on_cpu(train[7][0], 32, True, 0).shape == (3, 32, 32)
    assert told == sorted(told)
    assert told[-1] == (13, 13)
    assert verify(tmp_path) == made
    assert made["bytes"] == sum((tmp_path / name).stat().st_size for name in contents(tmp_path))


@pytest.mark.usefixtures("small")
def test_generated_tokens_are_packed(tmp_path: Path) -> None:
    generate("tokens", tmp_path, 20, processes=1)
    train, test = (open_dataset(tmp_path, split=split) for split in ("train", "test"))
    assert isinstance(train, Packed)
    assert (train.kind, len(train), len(test), train.vocabulary) == ("tokens", 20, 1, 50257)
    tokens, following = train[19]
    assert tokens.shape == (1024,)
    assert int(tokens.max()) < 50257
    # Three tokens in four follow from the one before: the pairs that occur are far fewer than chance gives.
    pairs = {(int(a), int(b)) for at in range(20) for a, b in zip(*(t.tolist() for t in train[at]), strict=True)}
    assert len(pairs) < 0.8 * 20 * 1024
    assert torch.equal(tokens[1:], following[:-1])


@pytest.mark.usefixtures("small")
def test_a_finished_set_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate("imagenet", tmp_path, 4, classes=2, processes=1)
    monkeypatch.setattr(generated, "make_part", lambda *_: pytest.fail("made again"))
    assert generate("imagenet", tmp_path, 4, classes=2, processes=1) == made
    with pytest.raises(RequestError, match=r"holds generated data with samples=4; asked for samples=5"):
        generate("imagenet", tmp_path, 5, classes=2)


@pytest.mark.usefixtures("small")
def test_what_was_begun_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    generate("imagenet", whole, 20, form="shards", classes=4, processes=1)
    calls: list[int] = []
    make = generated.make_part

    def fail_at_third(folder: Path, request: Any, part: Any) -> Any:
        calls.append(part.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return make(folder, request, part)

    monkeypatch.setattr(generated, "make_part", fail_at_third)
    begun = tmp_path / "begun"
    with pytest.raises(KeyboardInterrupt):
        generate("imagenet", begun, 20, form="shards", classes=4, processes=1)
    assert not (begun / MANIFEST).exists()
    with pytest.raises(RequestError, match="no finished"):
        verify(begun)
    with (begun / ".prony-files.jsonl").open("a") as lines:
        lines.write('[2, [["train-000002.tar", 1')  # killed while writing
    (begun / "train-000000.tar").write_bytes(b"half")  # and a file that is not what it was
    generate("imagenet", begun, 20, form="shards", classes=4, processes=1)
    assert calls == [0, 1, 2, 0, 2, 3, 4]
    assert contents(begun) == contents(whole)
    verify(begun)


@pytest.mark.usefixtures("small")
def test_damage_is_found(tmp_path: Path) -> None:
    generate("imagenet", tmp_path, 10, form="shards", classes=2, processes=1)
    shard = tmp_path / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(RequestError, match=r"1 of 4 files: train-000001.tar"):
        verify(tmp_path)
    (tmp_path / ".prony-files.jsonl").unlink()
    with pytest.raises(RequestError, match="lost or changed its list"):
        verify(tmp_path)


@pytest.mark.usefixtures("small")
def test_processes_make_the_same_and_end_with_whoever_started_them(tmp_path: Path) -> None:
    """Killed without warning, no worker stays, and the next call goes on."""
    code = (
        "from prony_node.data import generated\n"
        "from prony_node.data.generated import generate\n"
        "if __name__ == '__main__':\n"
        "    generated.PART_FILES = 5\n"
        f"    generate('imagenet', {str(tmp_path / 'two')!r}, 60, classes=4, processes=2, "
        "report=lambda *now: print(*now, flush=True))\n"
    )
    script = tmp_path / "make.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # a part is there
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _alive(process.pid) == []
    assert any(number >= 0 for number in generated.finished_parts(tmp_path / "two"))
    for name in ("one", "two"):
        generate("imagenet", tmp_path / name, 60, classes=4, processes=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def _alive(session: int) -> list[int]:
    """Processes of that session."""
    need_proc()
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_size_is_known_before_and_room_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = estimate("imagenet", 1_281_167, processes=16)
    assert expected.bytes == pytest.approx(147.9e9 * 1.05, rel=0.03)  # the real archive, and a twentieth to test
    assert expected.seconds is not None
    assert estimate("tokens", 1000).bytes == 2 * 1050 * 1024
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 10**6))
    with pytest.raises(RequestError, match=r"has 0.00 GB free, and 0.1\d GB are needed"):
        generate("imagenet", tmp_path / "x", 1000)


@pytest.mark.usefixtures("small")
def test_the_estimate_is_near(tmp_path: Path) -> None:
    made = generate("food101", tmp_path, 60, classes=4, processes=1)
    assert estimate("food101", 60).bytes == pytest.approx(made["bytes"], rel=0.2)


def test_refusals_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RequestError, match=r"is not empty \(mine.txt\)"):
        generate("imagenet", tmp_path, 4)
    with pytest.raises(RequestError, match="did you mean 'imagenet'"):
        generate("image-net", tmp_path / "a", 4)
    with pytest.raises(RequestError, match="unknown form"):
        generate("imagenet", tmp_path / "a", 4, form="zip")
    with pytest.raises(RequestError, match="0 samples are not possible: expected from 1 to"):
        generate("imagenet", tmp_path / "a", 0)
    real = builtins.__import__

    def without_pillow(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ModuleNotFoundError, match="needs Pillow"):
        generate("imagenet", tmp_path / "b", 4)
    assert estimate("imagenet", 10).seconds is None


def test_only_one_writes_into_a_folder(tmp_path: Path) -> None:
    generate("tokens", tmp_path, 1, processes=1)
    with generated.held(tmp_path), pytest.raises(RequestError, match="another process is writing"):
        generate("tokens", tmp_path, 1)


def test_classes_can_be_learned_from_pixels() -> None:
    """The nearest mean of some images names the class of others: a model has something to find."""
    look, patterns = LOOKS["imagenet"], class_patterns(5)

    def pixels(seed: int) -> torch.Tensor:
        data = make_image(look, patterns, seed % 5, seed)
        image = decode_on_cpu(torch.frombuffer(bytearray(data), dtype=torch.uint8), 16, False, 0).float()
        return (image - image.mean((1, 2), keepdim=True)).flatten()

    means = torch.stack([torch.stack([pixels(5 * at + label) for at in range(4)]).mean(0) for label in range(5)])
    right = sum(int(((means - pixels(seed)).pow(2).sum(1)).argmin()) == seed % 5 for seed in range(100, 120))
    assert right >= 18
