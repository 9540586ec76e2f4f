"""Texts in JSON lines become tokens, by their bytes or by the user's tokenizer; a wrong line is named by its number."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.data import jsonl
from prony_node.data.opening import open_dataset
from prony_node.data.source import open_source
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
    monkeypatch.setattr(jsonl, "MOST_LINE", 100)
    (tmp_path / "long.jsonl.xz").write_bytes(lzma.compress(b'{"text": "' + b"a" * 10**6))
    with pytest.raises(RequestError, match="line 1 is longer than 100 bytes"):
        open_dataset(tmp_path / "long.jsonl.xz", sequence=8)
    monkeypatch.setattr(jsonl, "MOST_TOKENS", 50)
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
    with pytest.raises(RequestError, match="which is not installed: pip install tokenizers"):
        open_dataset(oscar, tokenizer=str(tmp_path / "wrong.json"))


def test_a_gpt_takes_texts_and_a_tokenizer_by_their_paths(oscar: Path, tokenizer: Path) -> None:
    workload = find_workload("gpt-117m")
    asked = workload.parse({"data": str(oscar), "tokenizer": str(tokenizer), "size": "tiny", "device": "cpu"})
    settings = workload.effective(asked, Machine("cpu", None, 2))
    opened = open_source("gpt-117m", workload.reads, workload.generated, settings, print, sequence=8)
    assert (opened.about["kind"], opened.about["vocabulary"]) == ("jsonl", len(WORDS))
    with pytest.raises(RequestError, match="tokenizer is for texts that you have, and data=device has none"):
        workload.parse({"tokenizer": str(tokenizer)})
