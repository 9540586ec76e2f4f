"""Every layout is opened as it comes; a wrong or incomplete folder is answered with what was expected and found."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from small_sets import CONTEXT, food101, idx, imagenet, jpeg, shards, squad, tar, write

from prony_node.contract import RequestError
from prony_node.data.dataset import Pixels
from prony_node.data.labelled_images import FIRST_LABELS, index_shard
from prony_node.data.loader import Encoded
from prony_node.data.source import KINDS, open_dataset
from prony_node.data.texts import Packed, SpanQuestions


def cifar_arrays(samples: int) -> tuple[torch.Tensor, list[int]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3072), generator=generator, dtype=torch.uint8)
    return images, [at % 10 for at in range(samples)]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_pickles_and_binaries_hold_the_same(tmp_path: Path, protocol: int) -> None:
    images, labels = cifar_arrays(10_000)
    content = {b"data": images.numpy(), b"labels": labels, b"batch_label": b"x", b"filenames": [b"a.png"] * 10_000}
    write(tmp_path / "a" / "cifar-10-batches-py" / "test_batch", pickle.dumps(content, protocol=protocol))
    records = torch.cat([torch.tensor(labels, dtype=torch.uint8)[:, None], images], 1)
    write(tmp_path / "b" / "test_batch.bin", records.numpy().tobytes())
    one, other = (open_dataset(tmp_path / name, split="test") for name in "ab")
    assert isinstance(one, Pixels)
    assert isinstance(other, Pixels)
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.images.flatten(1), images)
    assert one.labels.tolist() == other.labels.tolist() == labels
    assert one.kind == other.kind == "cifar10"
    with pytest.raises(RequestError, match="no data_batch_1"):
        open_dataset(tmp_path / "a")


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    images, _ = cifar_arrays(10_000)
    heads = torch.tensor([[at % 20, at % 100] for at in range(10_000)], dtype=torch.uint8)
    write(tmp_path / "test.bin", torch.cat([heads, images], 1).numpy().tobytes())
    write(tmp_path / "fine_label_names.txt", "\n".join(f"name{number}" for number in range(100)))
    opened = open_dataset(tmp_path, split="test")
    assert (opened.kind, opened.class_count, opened.classes[7]) == ("cifar100", 100, "name7")
    assert opened.labels[:3].tolist() == [0, 1, 2]
    assert opened.labels[99] == 99


class Evil:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._mark}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_anything(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({b"data": Evil(tmp_path / "mark"), b"labels": []}, protocol=protocol)
    write(tmp_path / "test_batch", content)
    with pytest.raises(RequestError, match=r"it asks for .*system"):
        open_dataset(tmp_path, "cifar10", "test")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("kind", FIRST_LABELS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_sets_are_told_apart_by_their_labels(tmp_path: Path, kind: str, suffix: str) -> None:
    labels = bytes(FIRST_LABELS[kind]["test"] * 1000)
    for name, data in (
        ("t10k-images-idx3-ubyte", idx((10_000, 28, 28), bytes(7_840_000))),
        ("t10k-labels-idx1-ubyte", idx((10_000,), labels)),
    ):
        write(tmp_path / f"{name}{suffix}", gzip.compress(data, 1) if suffix else data)
    opened = open_dataset(tmp_path, split="test")
    assert (opened.kind, len(opened), opened.labels[9].item()) == (kind, 10_000, labels[9])
    with pytest.raises(RequestError, match=r"expected train-images-idx3-ubyte .* found t10k-images"):
        open_dataset(tmp_path)


def test_class_folders_number_both_splits_alike(tmp_path: Path) -> None:
    train, test = (open_dataset(imagenet(tmp_path), split=split) for split in ("train", "test"))
    assert isinstance(train, Encoded)
    assert train.classes == test.classes == ("n0", "n1", "n2")
    assert (len(train), len(test), train.labels.tolist()) == (12, 6, [0] * 4 + [1] * 4 + [2] * 4)
    assert train.read(5) == jpeg(101)
    assert train.encoded_bytes == sum(path.stat().st_size for path in train.origin.files)
    write(tmp_path / "val" / "n7" / "x.JPEG", jpeg(1))
    with pytest.raises(RequestError, match="expected the classes of train alone; found n7 in val"):
        open_dataset(tmp_path, split="test")


def test_food101_misses_what_is_listed(tmp_path: Path) -> None:
    train = open_dataset(food101(tmp_path))
    assert (train.kind, train.labels.tolist(), len(open_dataset(tmp_path, split="test"))) == ("food101", [0, 0, 1], 1)
    (tmp_path / "images" / "pie" / "2.jpg").unlink()
    with pytest.raises(RequestError, match=r"the 3 images that meta/train.txt lists; found 2 of them; .*pie/2.jpg"):
        open_dataset(tmp_path)


def test_shards_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = open_dataset(shards(tmp_path))
    assert isinstance(train, Encoded)
    assert (train.kind, len(train), train.labels.tolist(), train.class_count) == ("shards", 6, [0, 1, 2] * 2, 3)
    assert [train.read(at) for at in (0, 4)] == [jpeg(0), jpeg(11)]
    assert len(open_dataset(tmp_path, split="test")) == 1
    monkeypatch.setattr("prony_node.data.labelled_images.index_shard", lambda path: pytest.fail("indexed again"))
    again = open_dataset(tmp_path)
    assert isinstance(again, Encoded)
    assert again.read(5) == train.read(5)
    monkeypatch.undo()
    write(tmp_path / "train-000001.tar", tar([("7.jpg", jpeg(7)), ("7.cls", b"0")]))
    assert len(open_dataset(tmp_path)) == 4  # a shard that changed is read anew


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'[[["train-000000.tar"]]]', b"\xff"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, index: bytes) -> None:
    write(shards(tmp_path) / ".prony-index-train.json", index)
    assert len(open_dataset(tmp_path)) == 6


def test_a_shard_cut_short_is_refused(tmp_path: Path) -> None:
    whole = (shards(tmp_path) / "train-000000.tar").read_bytes()
    for size in (len(whole) // 2, 3000, 512):
        path = write(tmp_path / "cut.tar", whole[:size])
        with pytest.raises(RequestError, match=r"cut short|cannot be read|no tar file"):
            index_shard(path)
    with pytest.raises(RequestError, match="without a class"):
        index_shard(write(tmp_path / "x.tar", tar([("1.jpg", b"x")])))
    with pytest.raises(RequestError, match="expected the number of a class"):
        index_shard(write(tmp_path / "x.tar", tar([("1.jpg", b"x"), ("1.cls", b"cat")])))


def test_squad_points_at_its_answer(tmp_path: Path) -> None:
    write(tmp_path / "train-v1.1.json", squad())
    opened = open_dataset(tmp_path, sequence=32)
    assert isinstance(opened, SpanQuestions)
    tokens, segments, start, end = opened[0]
    assert tokens.shape == segments.shape == (32,)
    assert start == end
    year = open_dataset(tmp_path, sequence=64)[0]
    assert tokens[start] == year[0][year[2]]
    assert (tokens[0], int((tokens == 102).sum()), segments[start]) == (101, 2, 1)
    with pytest.raises(RequestError, match=r"expected train-v1.1.json and dev-v1.1.json; found train-v1.1.json"):
        open_dataset(tmp_path, split="test")
    write(tmp_path / "dev-v1.1.json", squad(start=24))
    with pytest.raises(RequestError, match="does not stand at 24"):
        open_dataset(tmp_path, split="test")


def test_an_answer_far_into_a_passage_stays_in_sight(tmp_path: Path) -> None:
    document = json.loads(squad())
    document["data"][0]["paragraphs"][0]["context"] = "word " * 500 + CONTEXT
    document["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 2523
    write(tmp_path / "far" / "train-v1.1.json", json.dumps(document))
    write(tmp_path / "near" / "train-v1.1.json", squad())
    far, near = (open_dataset(tmp_path / name, sequence=64)[0] for name in ("far", "near"))
    assert far[0][far[2]] == near[0][near[2]]


@pytest.mark.parametrize(("dtype", "letter"), [("uint16", "H"), ("uint32", "I")])
def test_token_files_are_packed(tmp_path: Path, dtype: str, letter: str) -> None:
    for number in range(2):
        tokens = range(100 * number, 100 * number + 33)
        write(tmp_path / f"train-{number}.bin", struct.pack(f"<33{letter}", *tokens))
    write(tmp_path / "meta.json", json.dumps({"dtype": dtype, "vocabulary": 200}))
    opened = open_dataset(tmp_path, sequence=16)
    assert isinstance(opened, Packed)
    assert (len(opened), opened.vocabulary) == (4, 200)
    assert [int(opened[at][0][0]) for at in range(4)] == [0, 16, 100, 116]
    assert opened[3][1].tolist() == list(range(117, 133))
    write(tmp_path / "meta.json", json.dumps({"dtype": dtype, "vocabulary": 50}))
    with pytest.raises(RequestError, match="holds token 132, but its vocabulary is stated as 50"):
        open_dataset(tmp_path, sequence=16)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(RequestError, match=r"train-0\.json or meta\.json"):
        open_dataset(tmp_path, "tokens")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_folder_is_refused_in_a_sentence(tmp_path: Path, kind: str, split: str) -> None:
    with pytest.raises(RequestError, match=r"expected .*; found an empty folder"):
        open_dataset(tmp_path, kind, split)


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist; expected a folder with"):
        open_dataset(tmp_path / "nowhere")
    write(tmp_path / "a", "")
    write(tmp_path / "b", "")
    with pytest.raises(RequestError, match=r"expected .* found a, b"):
        open_dataset(tmp_path)
    with pytest.raises(RequestError, match="did you mean 'cifar10'"):
        open_dataset(tmp_path, "cifar-10")
    with pytest.raises(RequestError, match="unknown split 'val'"):
        open_dataset(tmp_path, split="val")


def test_the_fingerprint_is_of_names_sizes_and_content(tmp_path: Path) -> None:
    first = open_dataset(imagenet(tmp_path)).fingerprint()
    assert open_dataset(tmp_path).fingerprint() == first
    path = tmp_path / "train" / "n0" / "n0_0.JPEG"
    data = path.read_bytes()
    write(path, data[:-3] + b"xyz")
    changed = open_dataset(tmp_path).fingerprint()
    write(path, data)
    path.rename(path.with_name("other.JPEG"))
    assert len({first, changed, open_dataset(tmp_path).fingerprint()}) == 3
