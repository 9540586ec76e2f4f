"""One mapping of a YAML file, read key by key; what is wrong is said with its line and the nearest right thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import yaml

from prony_node.contract.errors import RequestError, nearest

MOST_BYTES = 256 * 1024
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Section:
    """Names with values. Ask for every name there is, then `done()` refuses what is left."""

    def __init__(self, node: yaml.Node, where: str, title: str) -> None:
        self.where, self.title = where, title
        self._asked: list[str] = []
        self._values: dict[str, yaml.Node] = {}
        if not isinstance(node, yaml.MappingNode):
            raise RequestError(f"{self._at(node)}: {title} is names with values")
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise RequestError(f"{self._at(key)}: a name in {title} is a word")
            if key.value in self._values:
                raise RequestError(f"{self._at(key)}: {key.value!r} stands twice in {title}")
            self._values[str(key.value)] = value

    def text(self, name: str, pattern: str = r"[^\x00]*", shape: str = "a line of text") -> str | None:
        """The text of a name; None where it is not given."""
        node = self._take(name)
        return None if node is None else self._text(node, name, pattern, shape)

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            guess = nearest(value, choices)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise self.wrong(name, f"{name} is {' or '.join(choices)}, not {value!r}{hint}")
        return value

    def count(self, name: str, least: int = 0) -> int | None:
        value = self.text(name, r"[0-9]{1,9}", "a whole number")
        if value is not None and int(value) < least:
            raise self.wrong(name, f"{name} is a whole number of at least {least}, not {value}")
        return None if value is None else int(value)

    def seconds(self, name: str) -> float | None:
        """A time such as 90s, 30m, 2h or 1d."""
        value = self.text(name, r"[0-9]{1,6}(\.[0-9]{1,3})?(s|m|min|h|d)?", "a time such as 90s, 30m, 2h or 1d")
        if value is None:
            return None
        match = re.match(r"([0-9.]+)([a-z]*)", value)
        assert match is not None
        return float(match.group(1)) * SECONDS[match.group(2)]

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value not in (None, "true", "false", "on", "off", "yes", "no"):
            raise self.wrong(name, f"{name} is true or false, not {value!r}")
        return value in ("true", "on", "yes")

    def texts(self, name: str, pattern: str = r"[^\x00]*", shape: str = "a line of text") -> tuple[str, ...]:
        """A list of texts."""
        node = self._take(name)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise RequestError(f"{self._at(node)}: {name} is a list")
        return tuple(self._text(item, name, pattern, shape) for item in node.value)

    def mapping(self, name: str, key_pattern: str, what: str) -> dict[str, str]:
        """Names of this form with texts."""
        inner = self.section(name)
        if inner is None:
            return {}
        for key in inner._values:
            if not re.fullmatch(key_pattern, key):
                raise inner.wrong(key, f"{key!r} is not {what}")
        return {key: inner.text(key) or "" for key in inner._values}

    def section(self, name: str) -> Section | None:
        node = self._take(name)
        return None if node is None else Section(node, self.where, f"{name} of {self.title}")

    def sections(self, name: str) -> dict[str, Section]:
        """A mapping of names of a person's choice to mappings; one that is empty is a mapping too."""
        inner = self.section(name)
        if inner is None:
            return {}
        empty = yaml.MappingNode("tag:yaml.org,2002:map", [])
        found = {}
        for key, node in inner._values.items():
            is_empty = isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")
            found[key] = Section(empty if is_empty else node, self.where, f"{key} of {inner.title}")
        return found

    def sections_of_all(self) -> dict[str, Section]:
        """Every name, each with a mapping."""
        self._asked += [name for name in self._values if name not in self._asked]
        return {name: Section(node, self.where, f"{name} of {self.title}") for name, node in self._values.items()}

    def items(self, name: str, parse: Callable[[Section], Any]) -> tuple[Any, ...]:
        """A list of mappings, each made something of."""
        node = self._take(name)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise RequestError(f"{self._at(node)}: {name} is a list")
        return tuple(parse(Section(item, self.where, f"an item of {name}")) for item in node.value)

    def is_text(self, name: str) -> bool:
        return isinstance(self._values.get(name), yaml.ScalarNode)

    def done(self) -> None:
        """Refuse the first name that nobody asked for."""
        for name in self._values:
            if name not in self._asked:
                guess = nearest(name, self._asked)
                hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(self._asked))}"
                raise self.wrong(name, f"{name!r} has no meaning in {self.title}; {hint}")

    def wrong(self, name: str, why: str) -> RequestError:
        node = self._values.get(name)
        return RequestError(f"{self._at(node) if node is not None else self.where}: {why}")

    def _take(self, name: str) -> yaml.Node | None:
        if name not in self._asked:
            self._asked.append(name)
        return self._values.get(name)

    def _text(self, node: yaml.Node, name: str, pattern: str, shape: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or "\0" in str(node.value):
            raise RequestError(f"{self._at(node)}: {name} is {shape}")
        value = str(node.value)
        if not re.fullmatch(pattern, value, re.DOTALL):
            raise RequestError(f"{self._at(node)}: {name} is {shape}, not {value[:80]!r}")
        return value

    def _at(self, node: yaml.Node) -> str:
        return f"{self.where}, line {node.start_mark.line + 1}" if node.start_mark else self.where


def read_section(text: str, where: str, title: str) -> Section:
    """The one mapping of a YAML text; it is composed and never constructed, so that no tag makes anything happen."""
    if len(text) > MOST_BYTES:
        raise RequestError(f"{where} is larger than {MOST_BYTES // 1024} KiB, which no {title} needs")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RequestError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    if node is None:
        raise RequestError(f"{where} is empty; a {title} is names with values")
    return Section(node, where, title)
