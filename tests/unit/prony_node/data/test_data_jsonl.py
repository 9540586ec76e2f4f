"""Texts in JSON lines become tokens, by their bytes or by the user's tokenizer; a wrong line is named by its number."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import RequestError, safe_files
from prony_node.contract.machine import Machine
from prony_node.data import texts
from prony_node.data.source import open_dataset, open_source
from prony_node.workloads import find_workload

TEXTS = [f"the text of line {number}" for number in range(40)]
WORDS = ["<|endoftext|>", "the", "text", "of", "line", *map(str, range(40))]


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


@pytest.fixture
def oscar(tmp_path: Path) -> Path:
    folder = tmp_path / "oscar"
    folder.mkdir()
    (folder / "part-1.jsonl").write_bytes(lines(TEXTS[:20]) + b"\n")
    (folder / "part-2.jsonl.xz").write_bytes(lzma.compress(lines(TEXTS[20:])))
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    own = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="the"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.enable_truncation(2)  # a tokenizer may come with what would cut texts short
    own.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_without_a_tokenizer_texts_are_their_bytes(oscar: Path) -> None:
    train, test = (open_dataset(oscar, split=split, sequence=8) for split in ("train", "test"))
    assert (train.kind, train.vocabulary) == ("jsonl", 256)  # type: ignore[attr-defined]
    whole = b"".join(text.encode() + b"\0" for text in TEXTS)
    assert bytes(train[1][0].tolist()) == whole[8:16]
    assert bytes(train[1][1].tolist()) == whole[9:17]
    cut = len(whole) - len(whole) // 10
    assert bytes(test[0][0].tolist()) == whole[cut : cut + 8]


def test_a_tokenizer_makes_whole_texts_into_its_tokens_with_its_end_between_them(oscar: Path, tokenizer: Path) -> None:
    found = open_dataset(oscar, sequence=12, tokenizer=str(tokenizer))
    told = " ".join(WORDS[number] for number in found[0][0].tolist())
    assert told == "the text of line 0 <|endoftext|> the text of line 1 <|endoftext|>"
    assert found.vocabulary == len(WORDS)  # type: ignore[attr-defined]
    assert found.fingerprint() != open_dataset(oscar, sequence=12).fingerprint(), "other tokens are another data set"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": ', "line 2 is no JSON"),
        (b'"text"', 'line 2: expected an object with a "text"'),
        (b'{"content": "a"}', 'line 2: expected an object with a "text"'),
        (b'{"text": ["a"]}', 'line 2: expected an object with a "text"'),
        (b'{"text": "\\ud800"}', r"line 2: its text holds half a character \(U\+D800\)"),
        (b'{"text": "\xff"}', "line 2 is no JSON"),
    ],
)
def test_a_line_that_is_no_text_is_refused_by_its_number(tmp_path: Path, line: bytes, said: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(["first"]) + line + b"\n")
    with pytest.raises(RequestError, match=said):
        open_dataset(tmp_path / "x.jsonl", sequence=8)


def test_a_line_without_end_and_too_many_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MOST_LINE", 100)
    (tmp_path / "long.jsonl.xz").write_bytes(lzma.compress(b'{"text": "' + b"a" * 10**6))
    with pytest.raises(RequestError, match="line 1 is longer than 100 bytes"):
        open_dataset(tmp_path / "long.jsonl.xz", sequence=8)
    monkeypatch.setattr(texts, "MOST_TOKENS", 50)
    (tmp_path / "many.jsonl").write_bytes(lines(TEXTS))
    with pytest.raises(RequestError, match="more than 50 tokens"):
        open_dataset(tmp_path / "many.jsonl", sequence=8)


def test_a_file_that_was_cut_or_is_not_compressed_is_refused(tmp_path: Path) -> None:
    packed = lzma.compress(lines(TEXTS))
    for data in (packed[: len(packed) // 2], b"plain"):
        (tmp_path / "x.jsonl.xz").write_bytes(data)
        with pytest.raises(RequestError, match=r"x\.jsonl\.xz is incomplete or no \.xz file"):
            open_dataset(tmp_path / "x.jsonl.xz", sequence=8)


def test_what_is_no_tokenizer_is_answered_with_a_sentence(
    oscar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "wrong.json").write_text("{}")
    for name, said in (("wrong.json", "it is no tokenizer.json"), ("none.json", "there is no such file")):
        with pytest.raises(RequestError, match=said):
            open_dataset(oscar, tokenizer=str(tmp_path / name))
    (tmp_path / "plain.txt").write_text("text " * 100)
    with pytest.raises(RequestError, match=r"tokenizer is for texts in JSON lines, and .* is text; leave it out"):
        open_dataset(tmp_path / "plain.txt", tokenizer=str(tmp_path / "wrong.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RequestError, match=r"which is not installed: pip install 'prony\[language\]'"):
        open_dataset(oscar, tokenizer=str(tmp_path / "wrong.json"))


def a_tokenizer(file: Path, vocabulary: dict[str, int], normalizer: object = None) -> Path:
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    parts = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model}
    file.write_text(json.dumps(parts | dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor"))))
    return file


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        ({"the": 0}, r"it fails on a text: WordLevel error: Missing \[UNK\] token"),
        ({}, "it fails on a text"),
        ({"[UNK]": 4 * 10**9}, "it has the id 4,000,000,000, and ids are below 16,777,216"),
        ({"[UNK]": 0, "a": 2 * 10**9}, "it has the id 2,000,000,000, and ids are below 16,777,216"),
        ({"[UNK]": 2**24}, "it has the id 16,777,216, and ids are below 16,777,216"),
    ],
)
def test_a_tokenizer_that_fails_or_has_absurd_ids_is_answered_with_a_sentence(
    oscar: Path, tmp_path: Path, vocabulary: dict[str, int], said: str
) -> None:
    pytest.importorskip("tokenizers")
    file = a_tokenizer(tmp_path / "own.json", vocabulary)
    with pytest.raises(RequestError, match=rf"tokenizer=.*own\.json is not possible: {said}"):
        open_dataset(oscar, sequence=8, tokenizer=str(file))


def test_a_panic_of_the_library_is_a_sentence_too(oscar: Path, tmp_path: Path) -> None:
    """It is no Exception."""
    pytest.importorskip("tokenizers")
    file = a_tokenizer(tmp_path / "own.json", {"[UNK]": 0}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(RequestError, match=r"tokenizer=.*own\.json is not possible: it is no tokenizer\.json"):
        open_dataset(oscar, sequence=8, tokenizer=str(file))


def test_ids_with_gaps_are_all_in_the_vocabulary(oscar: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = a_tokenizer(tmp_path / "own.json", {"[UNK]": 3, "never in a text": 70})
    assert open_dataset(oscar, sequence=8, tokenizer=str(file)).vocabulary == 71  # type: ignore[attr-defined]


class Handed:
    """A tokenizer that notes how many bytes it is handed at once, and takes each text for one word."""

    def __init__(self, own: Any) -> None:
        self.own, self.bytes = own, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> Any:
        self.bytes.append(sum(len(text.encode()) for text in texts))
        return self.own.encode_batch(["the"] * len(texts), add_special_tokens=add_special_tokens)


def test_long_texts_are_handed_to_a_tokenizer_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    """512 of them at once would take hundreds of GB before the first token is counted."""
    handed = Handed(texts.load_tokenizer(tokenizer))
    monkeypatch.setattr(texts, "load_tokenizer", lambda file: handed)
    (tmp_path / "x.jsonl").write_bytes(lines(["a" * 2**22] * 9 + ["\u00e9"] * 3))
    found = open_dataset(tmp_path / "x.jsonl", sequence=8, tokenizer=str(tokenizer))
    assert handed.bytes == [2**24, 2**24, 2**22 + 6]
    assert found[0][0].tolist() == [1, 0] * 4
    monkeypatch.setattr(texts, "MOST_TOKENS", 5)
    texts._encoded.cache_clear()
    handed.bytes.clear()
    with pytest.raises(RequestError, match="more than 5 tokens"):
        open_dataset(tmp_path / "x.jsonl", sequence=8, tokenizer=str(tokenizer))
    assert handed.bytes == [2**24], "tokens are counted after each batch"


def test_a_small_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 KB hold 2 * 10**9 newlines, which took minutes to pass over."""
    monkeypatch.setattr(safe_files, "UNPACKED_FREELY", 2**20)
    file = tmp_path / "x.jsonl.xz"
    file.write_bytes(lzma.compress(b"\n" * 2**22, preset=0))
    packed = file.stat().st_size
    with pytest.raises(
        RequestError, match=rf"x\.jsonl\.xz is refused: its {packed:,} bytes unpack to more than 1,048,576"
    ):
        open_dataset(file, sequence=8)
    (tmp_path / "plain.jsonl").write_bytes(b"\n" * 2**22 + lines(TEXTS))
    assert open_dataset(tmp_path / "plain.jsonl", sequence=8).kind == "jsonl", "what is not packed has its size"


def test_lines_that_cross_what_is_read_at_once_are_whole(oscar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (oscar / "part-1.jsonl").write_bytes(b"\n \r\n" + lines(TEXTS[:20]).rstrip(b"\n"))
    for size in (1, 7, 2**20):
        monkeypatch.setattr(texts, "BLOCK", size)
        assert [text for file in texts.find_lines(oscar) for text in texts.read_texts(file)] == TEXTS
        (oscar / "wrong.jsonl").write_bytes(b"\n" + lines(["first"]) + b"\n{")
        with pytest.raises(RequestError, match="line 4 is no JSON"):
            list(texts.read_texts(oscar / "wrong.jsonl"))
        (oscar / "wrong.jsonl").unlink()


def test_a_gpt_takes_texts_and_a_tokenizer_by_their_paths(oscar: Path, tokenizer: Path) -> None:
    workload = find_workload("gpt-117m")
    asked = workload.parse({"data": str(oscar), "tokenizer": str(tokenizer), "size": "tiny", "device": "cpu"})
    settings = workload.effective(asked, Machine("cpu", None, 2))
    opened = open_source("gpt-117m", workload.reads, workload.generated, settings, print, sequence=8)
    assert (opened.about["kind"], opened.about["vocabulary"]) == ("jsonl", len(WORDS))
    with pytest.raises(RequestError, match="tokenizer is for texts that you have, and data=device has none"):
        workload.parse({"tokenizer": str(tokenizer)})
