"""Documents as frozen dataclasses: one decoder, one encoder and one JSON Schema, all from the same type hints.

A field without a default is required. A field named `more` holds the keys that the class does not know, so that a
document of a later minor change loses nothing. An `optional()` field is left out of the document while it is None. A
`sparse()` field is written as it was read: left out, or null.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar

JsonObject = Mapping[str, Any]  # of a document: its keys are nobody's, or not ours
LARGEST = 1e100  # of what is measured: its square is still a number
MORE = "more"
Typed = TypeVar("Typed")
Given = ParamSpec("Given")
Decode = Callable[[Any], Any]


def optional() -> Any:
    """A field that may be absent: None, and then left out of the document."""
    return dataclasses.field(default=None, metadata={"optional": True})


def beside(name: str) -> Any:
    """A field that is left out of the document while it and the field of that name are None."""
    return dataclasses.field(default=None, metadata={"beside": name})


def sparse() -> Any:
    """A field that may be absent or null: None, and written as it was read. Its class has a field `more`."""
    return dataclasses.field(default=None, metadata={"optional": True, "null": True})


def empty() -> Any:
    """A field that is an empty object where it is absent."""
    return dataclasses.field(default_factory=dict)


def stated(kind: Callable[Given, Typed], /, *values: Given.args, **named: Given.kwargs) -> Typed:
    """An instance in which every field that is given stands in the document: a sparse one that is None as null."""
    made: Any = kind(*values, **named)
    null = {name: None for name, value in named.items() if value is None}
    found: Typed = dataclasses.replace(made, more={**null, **made.more})
    return found


def overlaid(under: Typed, over: Typed) -> Typed:
    """What `over` says, and of what it leaves open, or says is null, what `under` says. Both have a field `more`."""
    below, above = typing.cast("Any", under), typing.cast("Any", over)
    said = {field.name: own for field in dataclasses.fields(above) if (own := getattr(above, field.name)) is not None}
    made: Any = dataclasses.replace(below, **{**said, MORE: {**below.more, **above.more}})
    more = {name: own for name, own in made.more.items() if own is not None or getattr(made, name, None) is None}
    found: Typed = dataclasses.replace(made, more=more)
    return found


class Malformed(ValueError):
    """What is wrong with a document, and where: the names that lead there."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path

    def inside(self, name: str) -> Malformed:
        return Malformed(self.message, (name, *self.path))

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.message}" if self.path else self.message


class Absent(Malformed):
    """A field that a document must have."""

    def inside(self, name: str) -> Absent:
        return Absent(self.message, (name, *self.path))


def decode(kind: type[Typed], document: Any) -> Typed:
    """The document as an instance of the dataclass; Malformed names the first thing that is wrong."""
    made: Typed = _decoder(typing.cast("Any", kind))(document)
    return made


def encode(value: Any) -> Any:
    """The document of a typed value: what `decode` reads back as the same."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document, more = {}, getattr(value, MORE, {})
        for field in dataclasses.fields(value):
            own = getattr(value, field.name)
            if field.name == MORE or (own is None and field.name not in more and _is_left_out(value, field)):
                continue
            document[field.name] = encode(own)
        return {**document, **{name: own for name, own in more.items() if name not in document}}
    if isinstance(value, Mapping):
        return {name: encode(own) for name, own in value.items()}
    if isinstance(value, tuple | list):
        return [encode(own) for own in value]
    return value


def _is_left_out(value: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a field that is None stands in no document."""
    other = field.metadata.get("beside")
    return bool(field.metadata.get("optional")) or (other is not None and getattr(value, other) is None)


@functools.cache
def _decoder(hint: Any) -> Decode:
    if dataclasses.is_dataclass(hint):
        return _object_decoder(typing.cast("type[Any]", hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return functools.partial(_one_of, arguments)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(arguments)
    if origin in (Mapping, dict):
        inner = arguments[1]
        return functools.partial(_mapping, _decoder(inner) if inner is not Any else None, _plain_kinds(inner))
    if origin is tuple:
        inner = arguments[0]
        return functools.partial(_items, _decoder(inner) if inner is not Any else None, _plain_kinds(inner))
    return {str: _text, int: _whole, float: _number, bool: _flag, Any: _anything}[hint]


def _object_decoder(kind: type[Any]) -> Decode:
    hints = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name != MORE]
    decoders = {field.name: _decoder(hints[field.name]) for field in fields}
    required = [field.name for field in fields if _is_required(field)]
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    factories = [
        (field.name, field.default_factory)
        for field in dataclasses.fields(kind)
        if field.default_factory is not dataclasses.MISSING
    ]
    null = frozenset(field.name for field in fields if field.metadata.get("null"))
    plain = {
        name: kinds - {types.NoneType} if name in null else kinds
        for name in decoders
        if (kinds := _plain_kinds(hints[name]))
    }
    numbers = frozenset(name for name in decoders if hints[name] in (float, float | None))
    check = getattr(kind, "__post_init__", None)

    def decode_object(document: Any) -> Any:
        if type(document) is not dict:
            raise Malformed("is not an object")
        for name in required:
            if name not in document:
                raise Absent("is missing", (name,))
        values = defaults.copy()
        for name, make in factories:
            values[name] = make()
        for name, own in document.items():
            # Most fields are plain: they are told by their type, which takes a third of the time of a call.
            given = type(own)
            if name in plain:
                if given in plain[name]:
                    values[name] = own
                    continue
            elif given is float and name in numbers and -LARGEST <= own <= LARGEST:
                values[name] = own
                continue
            decode_field = decoders.get(name)
            if decode_field is None or (own is None and name in null):
                values[MORE][name] = own
                continue
            try:
                values[name] = decode_field(own)
            except Malformed as error:
                raise error.inside(name) from None
        made = object.__new__(kind)
        made.__dict__.update(values)  # as __init__ of a frozen dataclass does, field by field, in three times the time
        if check is not None:
            try:
                check(made)
            except ValueError as error:
                raise error if isinstance(error, Malformed) else Malformed(str(error)) from None
        return made

    return decode_object


def _plain_kinds(hint: Any) -> frozenset[type]:
    """The types whose every value a field may have; none where a value has to be looked at."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return frozenset(kinds) if set(kinds) <= {str, int, bool, types.NoneType} else frozenset()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union_decoder(arguments: tuple[Any, ...]) -> Decode:
    others = [one for one in arguments if one is not type(None)]
    if len(others) == 1:
        inner = _decoder(others[0])
        return lambda document: None if document is None else inner(document)
    allowed = frozenset([*arguments, *([int] if float in arguments else [])])
    decode_object = next((_decoder(typing.cast("Any", one)) for one in others if dataclasses.is_dataclass(one)), None)

    def decode_plain(document: Any) -> Any:
        kind = type(document)
        if kind is dict and decode_object is not None:
            return decode_object(document)
        if kind not in allowed:
            raise Malformed("is no single value")
        return _number(document) if kind is float or kind is int else document

    return decode_plain


def _mapping(inner: Decode | None, plain: frozenset[type], document: Any) -> Any:
    if type(document) is not dict:
        raise Malformed("is not an object")
    if inner is None or (plain and plain.issuperset(map(type, document.values()))):
        return document
    made = {}
    for name, own in document.items():
        try:
            made[name] = inner(own)
        except Malformed as error:
            raise error.inside(str(name)) from None
    return made


def _items(inner: Decode | None, plain: frozenset[type], document: Any) -> Any:
    if type(document) is not list:
        raise Malformed("is not a list")
    if inner is None or (plain and plain.issuperset(map(type, document))):
        return tuple(document)
    made = []
    for number, own in enumerate(document):
        try:
            made.append(inner(own))
        except Malformed as error:
            raise error.inside(str(number)) from None
    return tuple(made)


def _one_of(words: tuple[Any, ...], document: Any) -> Any:
    if not isinstance(document, str) or document not in words:
        raise Malformed(f"is {document!r:.60}, which is none of {', '.join(words)}")
    return document


def _text(document: Any) -> str:
    if not isinstance(document, str):
        raise Malformed("is no text")
    return document


def _whole(document: Any) -> int:
    if type(document) is not int:
        raise Malformed("is no whole number")
    return document


def _number(document: Any) -> float:
    """A finite number of a size that can still be computed with; a whole one stays whole."""
    if type(document) not in (float, int):
        raise Malformed("is no number")
    if not abs(document) <= LARGEST:
        raise Malformed(f"is no finite number up to {LARGEST:g}")
    return document


def _flag(document: Any) -> bool:
    if type(document) is not bool:
        raise Malformed("is neither true nor false")
    return document


def _anything(document: Any) -> Any:
    return document


def json_schema(kind: type[Any], *, title: str, address: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a dataclass and of all that it holds."""
    found: dict[str, Any] = {}
    whole = _schema(kind, found)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": address, "title": title,
            **whole, "$defs": dict(sorted(found.items()))}  # fmt: skip


def _schema(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint):
        name = typing.cast("type[Any]", hint).__name__
        if name not in found:
            found[name] = {}  # so that a class that holds itself ends
            found[name] = _object_schema(typing.cast("type[Any]", hint), found)
        return {"$ref": f"#/$defs/{name}"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, found) for one in arguments]}
    if origin in (Mapping, dict):
        inner = _schema(arguments[1], found)
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], found)}
    number = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
    plain: dict[Any, dict[str, Any]] = {
        str: {"type": "string"}, int: {"type": "integer"}, float: number, bool: {"type": "boolean"},
        type(None): {"type": "null"}, Any: {},
    }  # fmt: skip
    return plain[hint]


def _object_schema(kind: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name != MORE]
    return {
        "description": (kind.__doc__ or "").split("\n")[0],
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], found) for field in fields},
        "required": [field.name for field in fields if _is_required(field)],
        **getattr(kind, "SCHEMA", {}),
    }
