"""Texts in JSON lines, plain or compressed (OSCAR): one object per line, with its text under `text`."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import Origin, listing, refuse
from prony_node.data.tokens import BYTES, END_OF_FILE, HELD_OUT, Packed

SUFFIXES = (".jsonl", ".jsonl.xz")
MOST_LINE = 2**24  # bytes of one object: what is longer is no line of text
MOST_TOKENS = 10**9  # that are held in memory, 4 bytes each
TOGETHER = 512  # texts that a tokenizer is handed at once, for its threads
MOST_TOKENIZER = 2**27  # bytes of a tokenizer.json
ENDS = ("<|endoftext|>", "</s>", "<eos>", "[SEP]")  # by which tokenizers name the end of a text


@dataclass(frozen=True)
class Texts:
    """All texts as tokens, one after another."""

    tokens: Tensor
    vocabulary: int


def find_lines(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.name.endswith(SUFFIXES) else []
    files = (file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
    return sorted(file for file in files if file.is_file() and not file.name.startswith("."))


def open_lines(path: Path, split: str, sequence: int, tokenizer: str | None = None) -> Packed:
    """The texts one after another, as tokens: the first nine tenths to train, the rest to test.

    Without a tokenizer a text is its bytes.
    """
    files = tuple(find_lines(path))
    if not files:
        raise refuse(path, "set of JSON lines", "files *.jsonl or *.jsonl.xz", listing(path))
    own = None if tokenizer is None else Path(tokenizer).expanduser()
    texts = _encoded(files, own, tuple(file.stat().st_mtime_ns for file in files))
    cut = len(texts.tokens) - len(texts.tokens) // HELD_OUT
    part = texts.tokens[:cut] if split == "train" else texts.tokens[cut:]
    folder = path.parent if path.is_file() else path
    origin = Origin("jsonl", split, folder, files if own is None else (*files, own))
    return Packed(origin, [part], texts.vocabulary, sequence)


@lru_cache(maxsize=1)  # both splits are of the same tokens
def _encoded(files: tuple[Path, ...], tokenizer: Path | None, changed: tuple[int, ...]) -> Texts:
    texts = (text for file in files for text in read_texts(file))
    if tokenizer is None:
        return Texts(_joined((array("B", text.encode()) for text in texts), END_OF_FILE, "B"), BYTES)
    own = load_tokenizer(tokenizer)
    end = next((number for name in ENDS if (number := own.token_to_id(name)) is not None), None)
    together = iter(lambda: list(islice(texts, TOGETHER)), [])
    numbers = (array("i", one.ids) for some in together for one in own.encode_batch(some, add_special_tokens=False))
    tokens = _joined(numbers, end, "i")
    largest = int(tokens.max()) if len(tokens) else 0
    return Texts(tokens, max(own.get_vocab_size(), largest + 1))


def _joined(parts: Iterator[array[int]], end: int | None, kind: str) -> Tensor:
    """One tensor of all parts, each followed by `end`, which takes no more memory than the tokens do."""
    held: array[int] = array(kind)
    for part in parts:
        held.extend(part)
        if end is not None:
            held.append(end)
        if len(held) > MOST_TOKENS:
            raise RequestError(
                f"these texts have more than {MOST_TOKENS:,} tokens, which are held in memory; give fewer files, or "
                "token files (train.bin)"
            )
    dtype = {"B": torch.uint8, "i": torch.int32}[kind]
    return torch.frombuffer(held, dtype=dtype) if held else torch.empty(0, dtype=dtype)


def read_texts(file: Path) -> Iterator[str]:
    """The text of every line, read as a stream; empty lines are passed over."""
    with _opened(file) as stream:
        number = 0
        while line := _line(stream, file, number + 1):
            number += 1
            if line.strip():
                yield parse_text(line, f"{file}, line {number:,}")


def _opened(file: Path) -> BinaryIO:
    if not file.name.endswith(".xz"):
        return file.open("rb")
    try:
        import lzma
    except ImportError as error:  # a Python can be built without it
        raise RequestError(f"{file} needs Python's lzma, which this one was built without; unpack the file") from error
    return cast(BinaryIO, lzma.open(file))


def _line(stream: BinaryIO, file: Path, number: int) -> bytes:
    try:
        line = stream.readline(MOST_LINE + 1)
    except OSError:
        raise
    except Exception as error:  # of lzma, which may not be there to be named
        raise RequestError(f"{file} is incomplete or no .xz file: {error}") from error
    if len(line) > MOST_LINE:
        raise RequestError(f"{file}, line {number:,} is longer than {MOST_LINE:,} bytes: no line of text")
    return line


def parse_text(line: bytes, where: str) -> str:
    """The text of one object."""
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {str(error)[:120]}") from error
    text = document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise RequestError(f'{where}: expected an object with a "text", found {str(document)[:60]!r}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where}: its text holds half a character (U+{ord(text[error.start]):X})") from error
    return text


def load_tokenizer(file: Path) -> Any:
    """The user's tokenizer.json, for whole texts: neither cut nor padded."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RequestError(
            f"tokenizer={file} is read by the library tokenizers, which is not installed: pip install tokenizers"
        ) from error
    if not file.is_file():
        raise RequestError(f"tokenizer={file} is not possible: there is no such file")
    if file.stat().st_size > MOST_TOKENIZER:
        raise RequestError(f"tokenizer={file} is not possible: it is larger than {MOST_TOKENIZER:,} bytes")
    try:
        own = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise RequestError(f"tokenizer={file} is not possible: it is no tokenizer.json: {str(error)[:200]}") from error
    own.no_truncation()
    own.no_padding()
    return own
