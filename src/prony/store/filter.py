"""The small language of `prony query`: terms that must all hold, such as precision=bf16 devices>1 device~H200."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prony.store.rows import storable
from prony_node.contract.errors import RequestError, unknown

OPERATORS = ("!=", "!~", "<=", ">=", "=", "<", ">", "~")
TEXT_OPERATORS = ("~", "!~")
LONGEST = 4000  # characters of a filter
MOST_TERMS = 50
NOTHING = "none"  # the word for a value that is not there
SIZES = {
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "k": 1e3, "M": 1e6, "G": 1e9, "%": 0.01, "ms": 1e-3, "us": 1e-6, "s": 1.0, "W": 1.0, "J": 1.0, "": 1.0,
}  # fmt: skip
SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")

_TERM = re.compile(
    r"""\s*(?P<field>[A-Za-z_][A-Za-z0-9_.]*)\s*(?P<operator>!=|!~|<=|>=|=|<|>|~)\s*"""
    r"""(?P<values>(?:"[^"]*"|'[^']*'|[^\s"',]+)(?:,(?:"[^"]*"|'[^']*'|[^\s"',]+))*)(?=\s|$)"""
)
_VALUE = re.compile(r""""([^"]*)"|'([^']*)'|([^\s"',]+)""")
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)([A-Za-z%]*)")


@dataclass(frozen=True)
class Field:
    """A name that can be asked for; `kind` is number, flag or text."""

    name: str
    kind: str
    words: tuple[str, ...] = ()  # that a flag may be, besides on and off


@dataclass(frozen=True)
class Term:
    """One condition: a field, how it is compared, and with what; None stands for a value that is not there."""

    field: Field
    operator: str
    values: tuple[str | float | bool | None, ...]


def parse_filter(text: str, fields: Mapping[str, Field]) -> list[Term]:
    """The terms of a filter, or a RequestError that says what is wrong with it and what is near."""
    if len(text) > LONGEST:
        raise RequestError(f"the filter has {len(text)} characters, and may have {LONGEST}")
    text = storable(text)
    terms: list[Term] = []
    position = 0
    while text[position:].strip():
        match = _TERM.match(text, position)
        if match is None:
            shown = text[position:].strip().split()[0][:60]
            raise RequestError(
                f"{shown!r} is no term of a filter: a term is FIELD, one of {' '.join(OPERATORS)}, and a value, "
                "such as precision=bf16 or device~H200; quote a value with spaces"
            )
        terms.append(_make_term(match, fields))
        position = match.end()
        if len(terms) > MOST_TERMS:
            raise RequestError(f"a filter may have {MOST_TERMS} terms")
    return terms


def find_field(name: str, fields: Mapping[str, Field]) -> Field:
    """The field of this name; an unknown one is answered with the nearest.

    Of records, effective.NAME and asked.NAME name any setting, such as one that a single workload has.
    """
    if name in fields:
        return fields[name]
    if "effective" not in fields:
        raise unknown("field of an anchor", name, fields)
    group, _, rest = name.partition(".")
    if group in ("effective", "asked") and SETTING.fullmatch(rest):
        return Field(name, "any")
    hint = f" A setting that only some workloads have is effective.{name}." if SETTING.fullmatch(name) else ""
    raise RequestError(f"{unknown('field', name, fields)}{hint}")


def parse_number(text: str) -> float | None:
    """A number with or without one of the few units there are: 40GiB, 5%, 20ms."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in SIZES:
        return None
    return float(match[1]) * SIZES[match[2]]


def _make_term(match: re.Match[str], fields: Mapping[str, Field]) -> Term:
    field, operator = find_field(match["field"], fields), match["operator"]
    words = ["".join(found) for found in _VALUE.findall(match["values"])]
    if len(words) > 1 and operator not in ("=", "!="):
        raise RequestError(f"{match[0].strip()!r}: several values go with = and != alone")
    if operator in TEXT_OPERATORS:
        if field.kind in ("number", "flag"):
            raise RequestError(f"{field.name} is a {field.kind}: {operator} looks for a part of a text")
        return Term(field, operator, (words[0],))
    values = tuple(_value(field, word) for word in words)
    if operator not in ("=", "!=") and None in values:
        raise RequestError(f"{match[0].strip()!r}: {NOTHING} is neither more nor less than anything")
    return Term(_told_by(field, values), operator, values)


def _told_by(field: Field, values: tuple[str | float | bool | None, ...]) -> Field:
    """A setting of any kind is compared as what it is compared with."""
    if field.kind != "any":
        return field
    kinds = {
        "flag" if isinstance(v, bool) else "number" if isinstance(v, float) else "text" for v in values if v is not None
    }
    if len(kinds) > 1:
        raise RequestError(f"{field.name} is compared with values of several kinds")
    return Field(field.name, kinds.pop() if kinds else "text")


def _value(field: Field, word: str) -> str | float | bool | None:
    if word == NOTHING:
        return None
    if field.kind == "flag":
        if word in field.words:
            return word
        if word not in ("on", "off"):
            raise RequestError(f"{field.name} is {' or '.join(('on', 'off', *field.words))}, not {word!r}")
        return word == "on"
    number = parse_number(word)
    if field.kind == "number":
        if number is None:
            raise RequestError(f"{field.name} is a number, and {word[:60]!r} is none (40GiB, 5% and 20ms are)")
        return number
    if field.kind == "any":
        return word == "on" if word in ("on", "off") else word if number is None else number
    return word
