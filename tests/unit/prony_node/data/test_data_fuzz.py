"""Whatever bytes a file holds, its reader answers with data or with a sentence, and with nothing else."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_sets import idx, instances, jpeg, squad, tar, write

from prony_node.contract import RequestError
from prony_node.data.dataset import as_tensor
from prony_node.data.detection import parse_instances
from prony_node.data.labelled_images import (
    index_shard,
    open_food101,
    open_idx,
    parse_binary,
    parse_idx,
    parse_labels,
    parse_pickle,
    unpickle,
)
from prony_node.data.loader import decoded
from prony_node.data.texts import map_tokens, open_lines, parse_note, parse_squad, parse_text

HERE = "the file"
EASY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
FEW = settings(EASY, max_examples=60)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """The file with some bytes changed, cut or inserted."""

    @st.composite
    def draw(choose: st.DrawFn) -> bytes:
        data = bytearray(whole)
        for _ in range(choose(st.integers(1, 6))):
            at = choose(st.integers(0, max(0, len(data) - 1)))
            change = choose(st.sampled_from(("set", "cut", "insert", "drop")))
            if change == "set" and data:
                data[at] = choose(st.integers(0, 255))
            elif change == "cut":
                del data[at:]
            elif change == "insert":
                data[at:at] = choose(st.binary(max_size=9))
            else:
                del data[at : at + choose(st.integers(1, 9))]
        return bytes(data)

    return draw()


def only_a_sentence(call: Callable[[], object]) -> None:
    try:
        call()
    except RequestError as error:
        assert str(error).strip()  # noqa: PT017
        assert "\n" not in str(error)[:200]  # noqa: PT017


IDX = idx((3, 4, 5), bytes(60))


@EASY
@given(st.one_of(st.binary(max_size=80), damaged(IDX)))
@example(bytes((0, 0, 8, 3)) + b"\xff" * 12)
@example(bytes((0, 0, 8, 3)))
@example(idx((0, 28, 28), b""))
def test_idx(data: bytes) -> None:
    only_a_sentence(lambda: parse_idx(data, 3, HERE))
    only_a_sentence(lambda: parse_idx(data, 1, HERE))


@FEW
@given(st.one_of(st.binary(max_size=80), damaged(gzip.compress(idx((10,), bytes(10))))))
def test_gzipped_idx(tmp_path: Path, data: bytes) -> None:
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        write(tmp_path / name, data)
    only_a_sentence(lambda: open_idx(tmp_path, None, "test"))


@EASY
@given(st.binary(max_size=3 * 3074), st.sampled_from(("cifar10", "cifar100")))
def test_cifar_binary(data: bytes, kind: str) -> None:
    only_a_sentence(lambda: parse_binary(data, kind, 2, HERE))


ARRAY = torch.zeros(2, 3072, dtype=torch.uint8).numpy()
PICKLES = [pickle.dumps({b"data": ARRAY, b"labels": [1, 2]}, protocol=protocol) for protocol in (0, 2, 4)]


@EASY
@given(st.one_of(st.binary(max_size=60), *(damaged(data) for data in PICKLES)))
@example(b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x3f.")  # a byte array of 2**62
@example(b"\x80\x02]r\xff\xff\xff\x7f.")  # a place in memory far out
@example(b"c_codecs\nencode\n(NtR.")
@example(b"c_codecs\nencode\n(N}tb.")  # state for a function
@example(b"cnumpy\nndarray\n}b.")
@example(b"cbuiltins\neval\n(V1+1\ntR.")
@example(b"(" * 5000 + b"t" * 5000 + b".")
@example(b"\x80\x04\x8c\x03\n\na\x8c\x01b\x93.")  # a name with line breaks
def test_cifar_pickle(data: bytes) -> None:
    only_a_sentence(lambda: unpickle(data))
    only_a_sentence(lambda: parse_pickle(data, "cifar10", 2, HERE))


@EASY
@given(st.one_of(st.text(max_size=30), st.lists(st.integers()).map(json.dumps), st.just("[" * 100_000)))
def test_label_lists(text: str) -> None:
    only_a_sentence(lambda: parse_labels(text, 3, HERE))


TAR = tar([("1.jpg", b"x" * 700), ("1.cls", b"3"), ("a/2.jpg", b"y"), ("a/2.cls", b"4")])


@EASY
@given(st.one_of(st.binary(max_size=2000), damaged(TAR)))
@example(b"")
@example(bytes(1024))
@example(TAR[:512] + TAR[512:].replace(b"3", b"-", 1))
def test_tar(tmp_path: Path, data: bytes) -> None:
    only_a_sentence(lambda: index_shard(write(tmp_path / "x.tar", data)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "qas", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@EASY
@given(st.one_of(st.binary(max_size=40), damaged(squad()), JSON.map(lambda value: json.dumps(value).encode())))
@example(b"[" * 100_000)
@example(squad(is_impossible=True))
@example(squad(answers=[]))
@example(squad(answers=[{"text": 3}]))
@example(squad(start=10**30))
@example(squad(start=-1))
def test_squad(data: bytes) -> None:
    only_a_sentence(lambda: parse_squad(data, HERE))


@EASY
@given(st.one_of(st.binary(max_size=40), JSON.map(lambda value: json.dumps(value).encode())))
@example(b'{"dtype": "uint16", "vocabulary": 1e5}')
@example(b'{"dtype": ["uint16"], "vocabulary": 5}')
@example(b'{"dtype": "uint16", "vocabulary": true}')
@example(b'{"dtype": "uint16", "vocabulary": 100000}')
def test_token_notes(data: bytes) -> None:
    only_a_sentence(lambda: parse_note(data, HERE))


@EASY
@given(st.binary(max_size=60) | damaged(b'{"text": "a line", "id": 1}'))
@example(b"[" * 100_000)
@example(b'{"text": "\\ud800"}')
@example(b'{"text": 1' + b"0" * 5000 + b"}")
@example(b'["text"]')
def test_json_lines(line: bytes) -> None:
    only_a_sentence(lambda: parse_text(line, HERE))


@FEW
@given(damaged(lzma.compress(b'{"text": "a line of some length"}\n' * 40)))
@example(b"")
def test_compressed_json_lines(tmp_path: Path, data: bytes) -> None:
    only_a_sentence(lambda: open_lines(write(tmp_path / "x.jsonl.xz", data), "train", 8))


@FEW
@given(st.binary(max_size=40), st.sampled_from(("uint16", "uint32")))
def test_token_files(tmp_path: Path, data: bytes, dtype: str) -> None:
    only_a_sentence(lambda: map_tokens(write(tmp_path / "x.bin", data), dtype, 1000))


@FEW
@given(st.binary(max_size=40), st.binary(max_size=40))
@example(b"pie", b"pie/../../x")
@example(b"pie", b"pie/\x00")
def test_food101_lists(tmp_path: Path, classes: bytes, names: bytes) -> None:
    (tmp_path / "images").mkdir(exist_ok=True)
    write(tmp_path / "meta" / "classes.txt", classes)
    write(tmp_path / "meta" / "train.txt", names)
    only_a_sentence(lambda: open_food101(tmp_path, "train"))


@FEW
@given(damaged(jpeg(0, 16, 16)))
def test_images(data: bytes) -> None:
    only_a_sentence(lambda: decoded(as_tensor(data)))


def test_the_fuzz_is_not_vacuous(tmp_path: Path) -> None:
    """The undamaged ones are read."""
    assert parse_idx(IDX, 3, HERE).shape == (3, 4, 5)
    assert all(len(parse_pickle(data, "cifar10", 2, HERE)[1]) == 2 for data in PICKLES)
    assert len(index_shard(write(tmp_path / "x.tar", TAR))) == 2
    assert len(parse_squad(squad(), HERE)) == 1
    with pytest.raises(RequestError):
        unpickle(b"cbuiltins\neval\n(V1+1\ntR.")


INSTANCES = json.loads(instances())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@EASY
@given(st.one_of(st.binary(max_size=80), damaged(instances())))
@example(b"[" * 100_000)
@example(b'{"images": [], "annotations": [], "categories": []}')
def test_instances(data: bytes) -> None:
    only_a_sentence(lambda: parse_instances(data, HERE))


@EASY
@given(st.sampled_from(("images", "annotations", "categories")), st.integers(0, 2), st.data())
def test_instances_with_another_value(part: str, at: int, data: st.DataObject) -> None:
    """One field of the document holds something else, or is gone."""
    document = json.loads(json.dumps(INSTANCES))
    entry = document[part][min(at, len(document[part]) - 1)]
    name = data.draw(st.sampled_from(sorted(entry)))
    entry[name] = data.draw(ANYTHING)
    if data.draw(st.booleans()):
        del entry[name]
    only_a_sentence(lambda: parse_instances(json.dumps(document).encode(), HERE))
