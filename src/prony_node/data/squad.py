"""SQuAD v1.1: questions on a passage, answered by a span of it.

Word pieces belong to the checkpoint that a user has, so a tokenizer is passed in. `byte_words` is Prony's own and is
no one's vocabulary: words and marks, each numbered by a checksum. It measures speed and trains from scratch.
"""

from __future__ import annotations

import json
import re
import string
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import DataSet, DataSetLayout, Origin, Tokenizer, listing, refuse

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


DATA_SETS = {"squad": DataSetLayout(is_squad, open_squad)}
