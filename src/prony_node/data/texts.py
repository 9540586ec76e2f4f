"""Texts: plain files as bytes, files of tokens, and JSON lines, packed into sequences; and SQuAD's questions."""

from __future__ import annotations

import contextlib
import json
import re
import string
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.plugins import install_command
from prony_node.contract.safe_files import most_unpacked
from prony_node.data.dataset import SPLITS, DataSet, DataSetLayout, Origin, Tokenizer, listing, refuse

# Texts: plain files as bytes, files of tokens, and JSON lines, packed into sequences of one length.
#
# JSON lines may be compressed (OSCAR): one object per line, with its text under `text`.


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


SUFFIXES = (".jsonl", ".jsonl.xz")
MOST_LINE = 2**24  # bytes of one object: what is longer is no line of text
BLOCK = 2**20  # bytes that are read at once
MOST_TOKENS = 10**9  # that are held in memory, 4 bytes each
TOGETHER, TOGETHER_BYTES = 512, 2**24  # texts that a tokenizer is handed at once, for its threads, and their bytes
MOST_TOKENIZER = 2**27  # bytes of a tokenizer.json
MOST_VOCABULARY = 2**24  # ids: the largest vocabularies in use have a 50th of it
MOST_GROWTH = 160  # times as long as it was: what comes before the model of a tokenizer
GROWTH_OF_MAP = 8  # of a table of characters (Precompiled), which is not read here
GROWTH_OF_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # the most characters that one becomes, as in U+FDFA
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
    with _as_fault_of_tokenizer(file, "it fails on a text"):
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
    with _as_fault_of_tokenizer(file, "it is no tokenizer.json"):
        text = content.decode()
        times = growth(json.loads(text))
    if times > MOST_GROWTH:
        raise RequestError(
            f"tokenizer={file} is not possible: its steps (Replace, Prepend, ByteLevel, NFKC and the like) "
            f"can make a text more than {MOST_GROWTH} times as long"
        )
    with _as_fault_of_tokenizer(file, "it is no tokenizer.json"):
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
    if (form := step.get("type")) in GROWTH_OF_FORMS:
        return GROWTH_OF_FORMS[str(form)]
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
def _as_fault_of_tokenizer(file: Path, fault: str) -> Iterator[None]:
    """Whatever the library raises, as a fault of the tokenizer: it has no narrower error than Exception, and panics."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(f"tokenizer={file} is not possible: {fault}: {str(error)[:200]}") from error


# SQuAD v1.1: questions on a passage, answered by a span of it.
#
# Word pieces belong to the checkpoint that a user has, so a tokenizer is passed in. `byte_words` is Prony's own and is
# no one's vocabulary: words and marks, each numbered by a checksum. It measures speed and trains from scratch.


Token = tuple[int, int, int]  # number, first character, the one after its last
FILES = {"train": "train-v1.1.json", "test": "dev-v1.1.json"}
PADDING, START, SEPARATOR, RESERVED = 0, 101, 102, 1000  # BERT's own numbers; words of `byte_words` come after them
MOST_QUESTION_TOKENS = 64  # as BERT's own fine-tuning cuts them
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class SquadQuestion:
    context: str
    question: str
    answers: tuple[str, ...]  # any of them is right
    start: int  # the first answer's first character in the context


def byte_words(vocabulary: int = 30522) -> Tokenizer:
    """Words and single marks, lower case, numbered by a checksum of their bytes."""

    def tokenize(text: str) -> list[Token]:
        span = vocabulary - RESERVED
        return [
            (
                RESERVED + zlib.crc32(found[0].lower().encode("utf-8", "surrogatepass")) % span,
                found.start(),
                found.end(),
            )
            for found in WORD.finditer(text)
        ]

    return tokenize


def word_pieces(vocabulary: str) -> Tokenizer:
    """BERT's word pieces, lower case, by the vocab.txt that belongs to the user's checkpoint."""
    from transformers import BertTokenizerFast

    if not Path(vocabulary).expanduser().is_file():
        raise RequestError(f"vocab={vocabulary} is not possible: there is no such file")
    pieces = BertTokenizerFast(vocab_file=str(Path(vocabulary).expanduser()), do_lower_case=True)

    def tokenize(text: str) -> list[Token]:
        found = pieces(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(number, *place) for number, place in zip(found["input_ids"], found["offset_mapping"], strict=True)]

    return tokenize


def normal_answer(text: str) -> str:
    """An answer as SQuAD compares them: lower case, without marks, articles and more than one space."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(word for word in plain.split() if word not in ("a", "an", "the"))


class SpanQuestions(DataSet):
    """A sample is (tokens, segments, start, end): question and passage in one sequence, and where the answer lies."""

    def __init__(self, origin: Origin, questions: list[SquadQuestion], sequence: int, tokenizer: Tokenizer) -> None:
        super().__init__(origin, (), torch.zeros(len(questions), dtype=torch.int64))
        self.questions = questions
        self.sequence = sequence
        self.tokenizer = tokenizer

    def subset(self, indices: Tensor) -> SpanQuestions:
        questions = [self.questions[at] for at in indices.tolist()]
        return SpanQuestions(self.origin, questions, self.sequence, self.tokenizer)

    def adapt(self, tokenizer: Tokenizer | None, scale_to: tuple[int, int] | None) -> None:
        if tokenizer is not None:
            self.tokenizer = tokenizer

    def _asked(self, question: SquadQuestion) -> list[Token]:
        return self.tokenizer(question.question)[: min(MOST_QUESTION_TOKENS, self.sequence // 2)]

    def scores(self, answered: dict[str, Tensor]) -> dict[str, float]:
        """The loss, and the share of questions whose answer is one of the right ones, word for word."""
        pairs = zip(self.questions, answered["start"].long().tolist(), answered["end"].long().tolist(), strict=True)
        right = [self._is_right(question, start, end) for question, start, end in pairs]
        return super().scores({"loss": answered["loss"]}) | {"exact_match": sum(right) / len(right)}

    def _is_right(self, question: SquadQuestion, start: int, end: int) -> bool:
        head = len(self._asked(question)) + 2
        passage = self.tokenizer(question.context)
        if not 0 <= start - head <= end - head < len(passage):
            return False
        text = question.context[passage[start - head][1] : passage[end - head][2]]
        return normal_answer(text) in {normal_answer(answer) for answer in question.answers}

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        question = self.questions[index]
        asked = self._asked(question)
        passage = self.tokenizer(question.context)
        room = self.sequence - len(asked) - 3
        first, last = _span(passage, question.start, question.start + len(question.answers[0]))
        # To train, a long passage is read from where the answer is in sight; to test, from its beginning, since where
        # the answer lies is what is asked. BERT's own reader makes several windows of it.
        to_train = self.origin.split == "train"
        begin = max(0, min(first - room // 2, len(passage) - room)) if to_train and last >= room else 0
        window = passage[begin : begin + room]
        head = len(asked) + 2
        ids = [START, *(token[0] for token in asked), SEPARATOR, *(token[0] for token in window), SEPARATOR]
        segments = [0] * head + [1] * (len(window) + 1)
        padding = [PADDING] * (self.sequence - len(ids))
        place = [min(max(at - begin + head, head), self.sequence - 2) for at in (first, last)]
        return torch.tensor(ids + padding), torch.tensor(segments + padding), *(torch.tensor(at) for at in place)


def is_squad(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES.values()) or path.name in FILES.values()


def open_squad(path: Path, split: str, sequence: int = 384, tokenizer: Tokenizer | None = None) -> SpanQuestions:
    folder = path.parent if path.is_file() else path
    file = folder / FILES[split]
    if not file.is_file():
        raise refuse(folder, "SQuAD v1.1 folder", f"{FILES['train']} and {FILES['test']}", listing(folder))
    questions = parse_squad(file.read_bytes(), file)
    if not questions:
        raise refuse(folder, "SQuAD v1.1 folder", f"questions in {file.name}", "none")
    return SpanQuestions(Origin("squad", split, folder, (file,)), questions, sequence, tokenizer or byte_words())


def parse_squad(data: bytes, where: Path | str) -> list[SquadQuestion]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    try:
        return [
            _question(paragraph["context"], asked)
            for article in document["data"]
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise RequestError(f"{where} is not laid out as SQuAD v1.1: {type(error).__name__} {error}") from error
    except RequestError as error:
        raise RequestError(f"{where} is not SQuAD v1.1: {error}") from error


def _question(context: Any, asked: Any) -> SquadQuestion:
    text, answers = asked["question"], asked["answers"]
    if not isinstance(context, str) or not isinstance(text, str) or not isinstance(answers, list):
        raise TypeError("a context, question or list of answers is of another type")
    if not answers or asked.get("is_impossible"):
        raise RequestError(f"the question {text[:60]!r} has no answer (v2.0 has such questions)")
    first = answers[0]
    start = first["answer_start"]
    if type(start) is not int or not all(isinstance(answer["text"], str) and answer["text"] for answer in answers):
        raise TypeError("an answer's place or text is of another type")
    if start < 0 or context[start : start + len(first["text"])] != first["text"]:
        raise RequestError(f"the answer {first['text'][:40]!r} does not stand at {start} in its passage")
    return SquadQuestion(context, text, tuple(answer["text"] for answer in answers), start)


def _span(tokens: list[Token], start: int, end: int) -> tuple[int, int]:
    """The first and last token that touch these characters."""
    touching = [at for at, (_, begins, ends) in enumerate(tokens) if begins < end and ends > start]
    return (touching[0], touching[-1]) if touching else (0, 0)


DATA_SETS = {
    "tokens": DataSetLayout(lambda folder: any(find_token_files(folder, split) for split in SPLITS), open_tokens),
    "jsonl": DataSetLayout(lambda folder: bool(find_lines(folder)), open_lines),
    "text": DataSetLayout(lambda folder: bool(find_texts(folder)), open_text),
    "squad": DataSetLayout(is_squad, open_squad),
}
