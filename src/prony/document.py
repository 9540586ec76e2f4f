"""A YAML file read as places: every value with its line and column, nothing constructed, nothing unbounded.

Study files, suites and site files are read through it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from prony_node.contract.errors import RequestError, nearest, unknown

MOST_BYTES = 256 * 1024
MOST_PLACES = 20_000  # with every alias followed, which is what a YAML bomb is made of
MOST_DEPTH = 12
MOST_NAME = 320  # a label of Kubernetes has 317
PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
}


class DocumentError(RequestError):
    """A mistake in a file, with where it stands."""


@dataclass(frozen=True)
class DocumentValue:
    """A value of the document."""

    file: str
    node: yaml.Node

    @property
    def where(self) -> str:
        mark = self.node.start_mark
        return f"{self.file}, line {mark.line + 1}, column {mark.column + 1}"

    def wrong(self, why: str) -> DocumentError:
        return DocumentError(f"{self.where}: {why}")

    @property
    def is_text(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_nothing(self) -> bool:
        """An empty value, or a null."""
        return self.is_text and str(self.node.tag).endswith(":null")

    def plain(self) -> Any:
        """Lists, names with values, and texts as they are written; nothing is "" """
        if self.is_list:
            return [item.plain() for item in self.items("this")]
        if self.is_mapping:
            return {name: value.plain() for name, (_, value) in self.mapping("this").items()}
        return "" if self.is_nothing else self.text("this")

    def text(self, what: str) -> str:
        """The value as it is written: `on` stays a word, 010 stays three digits."""
        if not self.is_text or self.is_nothing:
            raise self.wrong(f"{what} is a word, a number or a line of text")
        value = str(self.node.value)
        if not all(letter.isprintable() or letter in "\n\t" for letter in value):
            raise self.wrong(f"{what} holds a control character, which could deceive whoever reads it on a terminal")
        return value

    def items(self, what: str) -> list[DocumentValue]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(f"{what} is a list")
        return [DocumentValue(self.file, node) for node in self.node.value]

    def texts(self, what: str) -> list[DocumentValue]:
        """A list of texts, or one of them alone."""
        places = [self] if self.is_text else self.items(what)
        for place in places:
            place.text(what)
        if not places:
            raise self.wrong(f"{what} is an empty list")
        return places

    def mapping(
        self, what: str, known: Collection[str] | None = None
    ) -> dict[str, tuple[DocumentValue, DocumentValue]]:
        """Name to (place of the name, place of the value); a name that is not known is answered with the nearest."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"{what} is names with values")
        found: dict[str, tuple[DocumentValue, DocumentValue]] = {}
        for key, value in self.node.value:
            name, place = DocumentValue(self.file, key), DocumentValue(self.file, value)
            word = name.text(f"a name in {what}")
            if len(word) > MOST_NAME:
                raise name.wrong(f"a name of {len(word):,} characters has no meaning in {what}")
            if known is not None and word not in known:
                guess = nearest(word, known)
                hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(known))}"
                raise name.wrong(f"{word!r} has no meaning in {what}; {hint}")
            if word in found:
                raise name.wrong(f"{word!r} stands twice in {what}")
            found[word] = (name, place)
        return found


Keys = Mapping[str, tuple[DocumentValue, DocumentValue]]  # as Place.mapping answers


def read_line(keys: Keys, name: str) -> str:
    """A text on one line; "" where the key is not there."""
    return " ".join(keys[name][1].text(name).split()) if name in keys else ""


def read_choice(keys: Keys, name: str, choices: Collection[str], otherwise: str) -> str:
    if name not in keys:
        return otherwise
    text = keys[name][1].text(name)
    if text not in choices:
        raise keys[name][1].wrong(str(unknown(name, text, choices)))
    return text


def empty_mapping(place: DocumentValue) -> DocumentValue:
    """Names with values of which there are none, where `place` has nothing."""
    start, end = place.node.start_mark, place.node.end_mark
    return DocumentValue(place.file, yaml.MappingNode("tag:yaml.org,2002:map", [], start, end))


def read_document(text: str, file: str, what: str = "study") -> DocumentValue:
    """The document of a YAML text, which is to be a `what`.

    It is composed and never constructed, so that no tag can make anything happen.
    """
    if len(text.encode("utf-8", errors="replace")) > MOST_BYTES:
        raise DocumentError(f"{file} is larger than {MOST_BYTES // 1024} KiB, which no {what} needs")
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise DocumentError(f"{file}{at}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise DocumentError(f"{file} is nested too deep to be a {what}") from error
    except ValueError as error:
        raise DocumentError(f"{file} is not YAML: {error}") from error
    if len(nodes) != 1:
        held = f"holds {len(nodes)} documents" if nodes else "is empty"
        raise DocumentError(f"{file} {held}; a {what} is one document")
    document = DocumentValue(file, nodes[0])
    for count, place in enumerate(_walk(document, 0, what)):
        if count > MOST_PLACES:
            raise document.wrong(f"with its aliases followed this has more than {MOST_PLACES:,} values; no {what} has")
        if str(place.node.tag) not in PLAIN_TAGS:
            raise place.wrong(f"{_tag(place)} is not read: a {what} is names, texts, numbers and lists")
    return document


def _walk(place: DocumentValue, depth: int, what: str) -> Iterator[DocumentValue]:
    if depth > MOST_DEPTH:
        raise place.wrong(f"this is nested more than {MOST_DEPTH} deep; no {what} is")
    yield place
    if isinstance(place.node, yaml.SequenceNode):
        for node in place.node.value:
            yield from _walk(DocumentValue(place.file, node), depth + 1, what)
    elif isinstance(place.node, yaml.MappingNode):
        for key, value in place.node.value:
            yield from _walk(DocumentValue(place.file, key), depth + 1, what)
            yield from _walk(DocumentValue(place.file, value), depth + 1, what)


def _tag(place: DocumentValue) -> str:
    tag = str(place.node.tag).removeprefix("tag:yaml.org,2002:")
    return "a merge key (<<)" if tag == "merge" else f"the tag {tag[:60]!r}"
