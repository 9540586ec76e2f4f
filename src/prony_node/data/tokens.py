"""Plain text as bytes, and files of tokens, packed into sequences of one length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import DataSet, Origin, listing, refuse

BYTES = 256  # the vocabulary of plain text
END_OF_FILE = 0  # between texts: no text holds this byte
HELD_OUT = 10  # the last tenth of a text is its test split
WIDTHS = {"uint16": 2, "uint32": 4}
PREFIXES = {"train": ("train",), "test": ("val", "validation", "test")}
CHECKED_TOKENS = 2**20  # at the head and at the end of a file: larger ones are not read through to be opened


@dataclass(frozen=True)
class Stretch:
    """One file's tokens; sequences do not cross from one to the next."""

    tokens: Tensor
    sequences: int


class Packed(DataSet):
    """A sample is (tokens, the tokens that follow them), int64."""

    def __init__(self, origin: Origin, stretches: list[Tensor], vocabulary: int, sequence: int) -> None:
        self._stretches = [Stretch(tokens, max(0, len(tokens) - 1) // sequence) for tokens in stretches]
        samples = sum(stretch.sequences for stretch in self._stretches)
        if not samples:
            held = sum(len(tokens) for tokens in stretches)
            raise RequestError(
                f"{origin.folder} holds {held:,} tokens for {origin.split}: too few for one of {sequence}"
            )
        super().__init__(origin, (), torch.zeros(samples, dtype=torch.int64))
        self.vocabulary = vocabulary
        self.sequence = sequence

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        for stretch in self._stretches:
            if index < stretch.sequences:
                break
            index -= stretch.sequences
        begin = index * self.sequence
        tokens = stretch.tokens[begin : begin + self.sequence + 1].long()
        return tokens[:-1], tokens[1:]


def find_token_files(folder: Path, split: str) -> list[Path]:
    files = sorted(path for path in folder.glob("*.bin") if not path.name.startswith("."))
    for prefix in PREFIXES[split]:
        named = [path for path in files if path.name.startswith(prefix)]
        if named:
            return named
    return []


def open_tokens(folder: Path, split: str, sequence: int) -> Packed:
    """`train.bin` or `train-000000.bin` and so on, and val; beside each, or once in meta.json, what they hold."""
    files = find_token_files(folder, split)
    if not files:
        names = " or ".join(f"{prefix}*.bin" for prefix in PREFIXES[split])
        raise refuse(folder, "set of token files", names, listing(folder))
    stretches, vocabulary, notes = [], 0, []
    for path in files:
        note = next((place for place in (path.with_suffix(".json"), folder / "meta.json") if place.is_file()), None)
        if note is None:
            expected = f'{path.stem}.json or meta.json with {{"dtype": "uint16", "vocabulary": 50257}}'
            raise refuse(folder, "set of token files", expected, listing(folder))
        dtype, held = parse_note(note.read_bytes(), note)
        stretches.append(map_tokens(path, dtype, held))
        vocabulary = max(vocabulary, held)
        notes.append(note)
    origin = Origin("tokens", split, folder, (*files, *dict.fromkeys(notes)))
    return Packed(origin, stretches, vocabulary, sequence)


def parse_note(data: bytes, where: Path | str) -> tuple[str, int]:
    """The type and the vocabulary of a token file."""
    try:
        note: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    dtype = note.get("dtype") if isinstance(note, dict) else None
    vocabulary = note.get("vocabulary") if isinstance(note, dict) else None
    if dtype not in WIDTHS if isinstance(dtype, str) else True:
        raise RequestError(f'{where}: expected "dtype" to be uint16 or uint32, found {str(dtype)[:40]!r}')
    if type(vocabulary) is not int or not 0 < vocabulary <= 2 ** (8 * WIDTHS[str(dtype)]):
        raise RequestError(f'{where}: expected "vocabulary" to be a number of tokens, found {str(vocabulary)[:40]!r}')
    return str(dtype), vocabulary


def map_tokens(path: Path, dtype: str, vocabulary: int) -> Tensor:
    """The file as a tensor that is read from disk as it is used."""
    size = path.stat().st_size
    if size == 0 or size % WIDTHS[dtype]:
        raise RequestError(f"{path} is incomplete: {size:,} bytes are no whole number of {dtype}")
    kind = {"uint16": torch.uint16, "uint32": torch.uint32}[dtype]
    tokens: Tensor = torch.from_file(str(path), shared=False, size=size // WIDTHS[dtype], dtype=kind)
    for part in (tokens[:CHECKED_TOKENS], tokens[-CHECKED_TOKENS:]):
        largest = int(part.long().max())
        if largest >= vocabulary:
            raise RequestError(f"{path} holds token {largest:,}, but its vocabulary is stated as {vocabulary:,}")
    return tokens


def find_texts(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(text for text in path.rglob("*.txt") if text.is_file() and not text.name.startswith("."))


def open_text(path: Path, split: str, sequence: int) -> Packed:
    """The texts one after another, as bytes: the first nine tenths to train, the rest to test."""
    files = find_texts(path)
    if not files:
        raise refuse(path, "text", "files *.txt", listing(path))
    joined = bytes([END_OF_FILE]).join(file.read_bytes() for file in files)
    if not joined:
        raise refuse(path, "text", "text", f"{len(files)} empty files")
    cut = len(joined) - len(joined) // HELD_OUT
    part = joined[:cut] if split == "train" else joined[cut:]
    tokens = torch.frombuffer(bytearray(part), dtype=torch.uint8) if part else torch.empty(0, dtype=torch.uint8)
    folder = path.parent if path.is_file() else path
    return Packed(Origin("text", split, folder, tuple(files)), [tokens], BYTES, sequence)
