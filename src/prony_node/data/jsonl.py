"""Texts in JSON lines, plain or compressed (OSCAR): one object per line, with its text under `text`."""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.extras import install_command
from prony_node.contract.plain import most_unpacked
from prony_node.data.dataset import Origin, listing, refuse
from prony_node.data.tokens import BYTES, END_OF_FILE, HELD_OUT, Packed

SUFFIXES = (".jsonl", ".jsonl.xz")
MOST_LINE = 2**24  # bytes of one object: what is longer is no line of text
BLOCK = 2**20  # bytes that are read at once
MOST_TOKENS = 10**9  # that are held in memory, 4 bytes each
TOGETHER, TOGETHER_BYTES = 512, 2**24  # texts that a tokenizer is handed at once, for its threads, and their bytes
MOST_TOKENIZER = 2**27  # bytes of a tokenizer.json
MOST_VOCABULARY = 2**24  # ids: the largest vocabularies in use have a 50th of it
MOST_GROWTH = 64  # times as long as it was: what comes before the model of a tokenizer
GROWTH_OF_MAP = 8  # of a table of characters (Precompiled), which is not read here
MAY_BE_EMPTY = re.compile(r"\(\?|[*?|^$]|\\[AbBGKzZyY]|\{0|\{,")  # in an expression that may match an empty place
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
    vocabulary = _vocabulary(own, tokenizer)
    end = next((number for name in ENDS if (number := own.token_to_id(name)) is not None), None)
    most = TOGETHER_BYTES // growth(json.loads(own.to_str()))
    numbers = (part for some in _batches(texts, most) for part in _encode(some, own, tokenizer))
    return Texts(_joined(numbers, end, "i"), vocabulary)


def _vocabulary(own: Any, file: Path) -> int:
    """How many ids a model needs for all of the tokenizer's: they may have gaps."""
    largest = max(own.get_vocab().values(), default=0)
    if largest >= MOST_VOCABULARY:
        raise RequestError(
            f"tokenizer={file} is not possible: it has the id {largest:,}, and ids are below {MOST_VOCABULARY:,}"
        )
    return max(int(own.get_vocab_size()), largest + 1)


def _batches(texts: Iterable[str], most: int) -> Iterator[list[str]]:
    """Texts to encode at once, few enough for a memory: the library takes up to 220 times their bytes meanwhile."""
    some: list[str] = []
    held = 0
    for text in texts:
        size = len(text.encode())
        if some and (len(some) == TOGETHER or held + size > most):
            yield some
            some, held = [], 0
        some.append(text)
        held += size
    if some:
        yield some


def _encode(texts: list[str], own: Any, file: Path) -> list[array[int]]:
    """The tokens of each text."""
    with _blamed(file, "it fails on a text"):
        return [array("i", one.ids) for one in own.encode_batch(texts, add_special_tokens=False)]


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
    for number, line in _numbered(file):
        if len(line) > MOST_LINE:
            raise RequestError(f"{file}, line {number:,} is longer than {MOST_LINE:,} bytes: no line of text")
        if line.strip():
            yield parse_text(line, f"{file}, line {number:,}")


def _numbered(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers; one that is too long is given as far as it was read."""
    number, rest = 1, b""
    for block in _blocks(file):
        *lines, rest = (rest + block).split(b"\n")
        yield from ((number + place, line) for place, line in enumerate(lines) if line)
        number += len(lines)
        if len(rest) > MOST_LINE:
            break
    yield number, rest


def _blocks(file: Path) -> Iterator[bytes]:
    packed = file.stat().st_size
    most = left = most_unpacked(packed)
    with _opened(file) as stream:
        while block := _read(stream, file):
            left -= len(block)
            if left < 0:
                raise RequestError(
                    f"{file} is refused: its {packed:,} bytes unpack to more than {most:,}, which no texts do; unpack "
                    "it yourself if you trust it"
                )
            yield block


def _opened(file: Path) -> BinaryIO:
    if not file.name.endswith(".xz"):
        return file.open("rb")
    try:
        import lzma
    except ImportError as error:  # a Python can be built without it
        raise RequestError(f"{file} needs Python's lzma, which this one was built without; unpack the file") from error
    return cast(BinaryIO, lzma.open(file))


def _read(stream: BinaryIO, file: Path) -> bytes:
    try:
        return stream.read(BLOCK)
    except OSError:
        raise
    except Exception as error:  # of lzma, which may not be there to be named
        why = "it asks for too much memory to unpack" if isinstance(error, MemoryError) else str(error)
        raise RequestError(f"{file} is incomplete or no .xz file{why and f': {why}'}") from error


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
            f"tokenizer={file} is read by the library tokenizers, which is not installed: {install_command('language')}"
        ) from error
    if not file.is_file():
        raise RequestError(f"tokenizer={file} is not possible: there is no such file")
    with file.open("rb") as opened:
        content = opened.read(MOST_TOKENIZER + 1)
    if len(content) > MOST_TOKENIZER:
        raise RequestError(f"tokenizer={file} is not possible: it is larger than {MOST_TOKENIZER:,} bytes")
    with _blamed(file, "it is no tokenizer.json"):
        text = content.decode()
        times = growth(json.loads(text))
    if times > MOST_GROWTH:
        raise RequestError(
            f"tokenizer={file} is not possible: its steps (Replace, Prepend, ByteLevel) can make a text more than "
            f"{MOST_GROWTH} times as long"
        )
    with _blamed(file, "it is no tokenizer.json"):
        own = Tokenizer.from_str(text)
    own.no_truncation()
    own.no_padding()
    return own


def growth(document: Any) -> int:
    """How many times as long the steps before the model of a tokenizer.json may make a text, at most."""
    if not isinstance(document, dict):
        return 1
    times, left = 1, [document.get("normalizer"), document.get("pre_tokenizer")]
    while left:
        step = left.pop()
        if isinstance(step, list):
            left += step
        elif isinstance(step, dict):
            times = min(times * _growth_of(step), MOST_GROWTH + 1)
            left += step.values()
    return times


def _growth_of(step: dict[str, Any]) -> int:
    """Of one step, told by its keys: the library also takes steps without a type."""
    if isinstance(step.get("prepend"), str):
        return 1 + len(step["prepend"])
    if "precompiled_charsmap" in step:
        return GROWTH_OF_MAP
    if step.get("type") == "ByteLevel":
        return 2  # a character beyond ASCII has two bytes or more, and each becomes a character
    content, pattern = step.get("content"), step.get("pattern")
    if not isinstance(content, str) or pattern is None:
        return 1
    found = pattern.get("String") if isinstance(pattern, dict) else pattern
    if isinstance(found, str) and found:
        return max(1, -(-len(content) // len(found)))
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    takes_some = isinstance(regex, str) and not MAY_BE_EMPTY.search(regex)
    return max(1, len(content)) if takes_some else 1 + len(content)


@contextlib.contextmanager
def _blamed(file: Path, fault: str) -> Iterator[None]:
    """Whatever the library raises, as a fault of the tokenizer: it has no narrower error than Exception, and panics."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"tokenizer={file} is not possible: {fault}: {str(error)[:200]}") from error
