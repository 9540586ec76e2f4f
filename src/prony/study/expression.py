"""The small language of conditions, exclusions and derived values: read by Python's parser, never run as Python."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prony_node.contract.errors import RequestError, nearest


class ExpressionError(RequestError):
    """What is wrong with an expression, and at which character."""

    def __init__(self, text: str, at: int, why: str) -> None:
        super().__init__(f"{shown(text)!r}, character {at + 1}: {why}")
        self.at = at


def shown(text: str) -> str:
    """A text as it stands in a message: its beginning, where it is long."""
    return text if len(text) <= 60 else f"{text[:57]}..."


MOST_NUMBER = 10**15

Scalar = str | int | float | bool
Values = Mapping[str, Scalar]
Evaluate = Callable[[Values], Scalar | None]  # None: a setting that the trial does not have
FUNCTIONS: dict[str, Callable[..., int | float]] = {"min": min, "max": max}


def constant(value: Scalar) -> Evaluate:
    """The same value for every trial."""
    return lambda settings: value


def truth(value: Scalar | None, word: str) -> bool:
    """Whether something holds, for the word that joins it."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"`{word}` joins what holds or does not, and {value!r} is neither")
    return value


def compare(sign: str, left: Scalar | None, right: Scalar | None) -> bool:
    """Whether a comparison holds; with what a trial does not have, none does."""
    if left is None or right is None:
        return False
    numbers = _is_number(left) and _is_number(right)
    if sign in ("==", "!="):
        same = left == right if numbers or type(left) is type(right) else False
        return same if sign == "==" else not same
    if not numbers:
        raise RequestError(f"{left!r} {sign} {right!r} compares what is not two numbers")
    assert not isinstance(left, str)
    assert not isinstance(right, str)
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def calculated(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """A calculation with two values."""

    def value(settings: Values) -> Scalar | None:
        a, b = left(settings), right(settings)
        return None if a is None or b is None else _calculate(sign, a, b)

    return value


def _calculate(sign: str, left: Scalar, right: Scalar) -> int | float:
    if not _is_number(left) or not _is_number(right):
        raise RequestError(f"{left!r} {sign} {right!r} is no calculation with two numbers")
    assert not isinstance(left, str)
    assert not isinstance(right, str)
    if sign in ("/", "//", "%") and right == 0:
        raise RequestError(f"{left!r} {sign} 0 divides by zero")
    if sign == "+":
        return _bounded(left + right)
    if sign == "-":
        return _bounded(left - right)
    if sign == "*":
        return _bounded(left * right)
    if sign == "/":
        return _bounded(left / right)
    return _bounded(left // right if sign == "//" else left % right)


def _bounded(number: int | float) -> int | float:
    if not math.isfinite(number) or abs(number) > MOST_NUMBER:
        raise RequestError("a number on the way is too large")
    return number


def called(name: str, arguments: list[Evaluate]) -> Evaluate:
    """min or max of some values."""

    def value(settings: Values) -> Scalar | None:
        found = [argument(settings) for argument in arguments]
        if any(one is None for one in found):
            return None
        if not all(one is not None and _is_number(one) for one in found):
            raise RequestError(f"{name} takes numbers")
        return FUNCTIONS[name](found) if len(found) > 1 else FUNCTIONS[name](found[0], found[0])

    return value


MOST_CHARACTERS = 400
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">"
}  # fmt: skip
CALCULATIONS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """An expression that was read: the settings it names, and its value for a trial's settings."""

    text: str
    names: frozenset[str]
    _evaluate: Evaluate
    where: str = ""  # it stands: file, line and column

    def value(self, settings: Values) -> Scalar | None:
        try:
            return self._evaluate(settings)
        except RequestError as error:
            raise RequestError(f"{self._shown} has no value here: {error}") from error

    def holds(self, settings: Values) -> bool:
        """Whether it is true; a condition that is a number or a word is a mistake."""
        value = self.value(settings)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RequestError(f"{self._shown} is {value!r}, and not something that holds or does not")
        return value

    @property
    def _shown(self) -> str:
        return f"{self.where}{': ' if self.where else ''}{shown(self.text)!r}"


def parse_expression(text: str, names: Collection[str], words: Collection[str] = ()) -> Expression:
    """Read an expression. `names` are the settings that it may speak of, `words` those that stand for themselves."""
    reader = _Reader(text, frozenset(names), frozenset(words))
    evaluate = reader.read(_syntax_tree(text))
    return Expression(text, frozenset(reader.used), evaluate)


def names_in(text: str) -> tuple[str, ...]:
    """What an expression names, in its order and each once; functions are no names."""
    found = [node for node in ast.walk(_syntax_tree(text)) if isinstance(node, ast.Name) and node.id not in FUNCTIONS]
    return tuple(dict.fromkeys(name.id for name in sorted(found, key=lambda name: name.col_offset)))


def _syntax_tree(text: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:  # also bounds how deep it nests
        raise ExpressionError(text, 0, f"an expression has at most {MOST_CHARACTERS} characters")
    if not text.strip():
        raise ExpressionError(text, 0, "an expression is missing")
    one_line = re.sub(r"\s", " ", text)
    skipped = len(one_line) - len(one_line.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in texts, which only Python cares about
            tree = ast.parse(one_line[skipped:], mode="eval").body
    except SyntaxError as error:
        at = skipped + min(max((error.offset or 1) - 1, 0), len(text))
        raise ExpressionError(text, at, f"cannot be read: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(text, 0, f"cannot be read: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            node.col_offset += skipped
    return tree


@dataclass
class _Reader:
    """From a syntax tree to a function of the settings; a kind of node that is not named here is refused."""

    text: str
    names: frozenset[str]
    words: frozenset[str]
    used: set[str] = field(default_factory=set)

    def read(self, node: ast.expr) -> Evaluate:
        match node:
            case ast.BoolOp(op=ast.And()):
                parts = [self.read(value) for value in node.values]
                return lambda settings: all(truth(part(settings), "and") for part in parts)
            case ast.BoolOp(op=ast.Or()):
                parts = [self.read(value) for value in node.values]
                return lambda settings: any(truth(part(settings), "or") for part in parts)
            case ast.UnaryOp(op=ast.Not()):
                found = self.read(node.operand)
                return lambda settings: not truth(found(settings), "not")
            case ast.UnaryOp(op=ast.USub()):
                return calculated("-", constant(0), self.read(node.operand))
            case ast.BinOp() if type(node.op) in CALCULATIONS:
                return calculated(CALCULATIONS[type(node.op)], self.read(node.left), self.read(node.right))
            case ast.Compare():
                return self._comparison(node)
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS and node.args:
                return called(name, [self.read(argument) for argument in node.args])
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._name(node, name)
        raise self._wrong(node, "cannot stand here")

    def _comparison(self, node: ast.Compare) -> Evaluate:
        if len(node.ops) > 1:
            raise self._wrong(node.comparators[0], "is compared twice: one comparison at a time; join two with `and`")
        left, operator, other = self.read(node.left), type(node.ops[0]), node.comparators[0]
        if operator is ast.In:
            members = [self.read(member) for member in (other.elts if isinstance(other, ast.Tuple) else [other])]
            return lambda settings: any(compare("==", left(settings), member(settings)) for member in members)
        if operator not in COMPARISONS:
            raise self._wrong(node, "has no comparison that is known here")
        sign, right = COMPARISONS[operator], self.read(other)
        return lambda settings: compare(sign, left(settings), right(settings))

    def _constant(self, node: ast.Constant, value: object) -> Evaluate:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(node, "is no value of a setting: there are numbers, texts, on and off")
        if not isinstance(value, str) and value > MOST_NUMBER:
            raise self._wrong(node, "is too large a number")
        return constant(value)

    def _name(self, node: ast.Name, name: str) -> Evaluate:
        if name in self.names:
            self.used.add(name)
            return lambda settings: settings.get(name)
        if name in ("on", "off"):
            return constant(name == "on")
        if name in self.words:
            return constant(name)
        guess = nearest(name, [*self.names, *self.words, "and", "or", "not"])
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise self._wrong(node, f"is no setting that this study gives, and no value of one{hint}")

    def _wrong(self, node: ast.expr, why: str) -> ExpressionError:
        at = len(self.text.encode()[: node.col_offset].decode(errors="replace"))  # the parser counts bytes
        return ExpressionError(self.text, at, f"{shown(ast.unparse(node))!r} {why}")
