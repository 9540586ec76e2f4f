"""The small language of conditions, exclusions and derived values: never run as Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError, nearest

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:e-?\d{1,3})?)(?![\w.])
    |(?P<name>[A-Za-z_]\w*)
    |(?P<text>"[^"]*"|'[^']*')
    |(?P<sign>==|!=|<=|>=|//|[<>+\-*/%(),]))""",
    re.VERBOSE | re.ASCII,
)


class ExpressionError(RequestError):
    """What is wrong with an expression, and at which character."""

    def __init__(self, text: str, at: int, why: str) -> None:
        super().__init__(f"{shown(text)!r}, character {at + 1}: {why}")
        self.at = at


@dataclass(frozen=True)
class Token:
    kind: str  # number, name, text, sign, end
    text: str
    at: int


def tokens(text: str) -> Iterator[Token]:
    """An expression as its words, and the end; a character that begins none is refused."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = TOKEN.match(text, at)
        if match is None or match.end() == at:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise ExpressionError(text, start, f"{text[start]!r} cannot stand here")
        kind = str(match.lastgroup)
        yield Token(kind, match.group(kind), match.start(kind))
        at = match.end()
    yield Token("end", "the end", end)


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


def joined(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
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


MOST_CHARACTERS, MOST_DEPTH = 400, 24

COMPARED = ("==", "!=", "<=", ">=", "<", ">")


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
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(text, 0, f"an expression has at most {MOST_CHARACTERS} characters")
    parser = _Parser(text, frozenset(names), frozenset(words))
    evaluate = parser.whole()
    return Expression(text, frozenset(parser.used), evaluate)


class _Parser:
    """Recursive descent, one method for each level of binding; each answers a function of the settings."""

    def __init__(self, text: str, names: frozenset[str], words: frozenset[str]) -> None:
        self._text, self._names, self._words = text, names, words
        self._tokens = list(tokens(text))
        self._place = 0
        self._depth = 0
        self.used: set[str] = set()

    def whole(self) -> Evaluate:
        found = self._either()
        if self._next.kind != "end":
            raise self._wrong(f"{self._next.text!r} cannot stand here")
        return found

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _wrong(self, why: str, token: Token | None = None) -> ExpressionError:
        return ExpressionError(self._text, (token or self._next).at, why)

    def _take(self, *texts: str) -> str | None:
        """The next token when it is one of these words or signs."""
        token = self._next
        if token.kind in ("sign", "name") and token.text in texts:
            self._place += 1
            return token.text
        return None

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._wrong(f"an expression is nested at most {MOST_DEPTH} deep")

    def _either(self) -> Evaluate:
        self._deeper()
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda settings: any(truth(part(settings), "or") for part in parts)

    def _both(self) -> Evaluate:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda settings: all(truth(part(settings), "and") for part in parts)

    def _negated(self) -> Evaluate:
        turns = 0
        while self._take("not"):
            turns += 1
        found = self._comparison()
        if not turns:
            return found
        return lambda settings: truth(found(settings), "not") != bool(turns % 2)

    def _comparison(self) -> Evaluate:
        left = self._sum()
        if self._take("in"):
            members = self._members()
            return lambda settings: any(compare("==", left(settings), member(settings)) for member in members)
        sign = self._take(*COMPARED)
        if sign is None:
            return left
        right = self._sum()
        if self._next.text in COMPARED and self._next.kind == "sign":
            raise self._wrong("one comparison at a time; join two with `and`")
        return lambda settings: compare(sign, left(settings), right(settings))

    def _members(self) -> list[Evaluate]:
        if not self._take("("):
            raise self._wrong('`in` is followed by values in brackets, such as in (1, 2) or in ("a", "b")')
        return self._arguments()

    def _arguments(self) -> list[Evaluate]:
        found = [self._sum()]
        while self._take(","):
            found.append(self._sum())
        self._close()
        return found

    def _close(self) -> None:
        if not self._take(")"):
            raise self._wrong(f"a bracket is not closed before {self._next.text!r}")

    def _sum(self) -> Evaluate:
        left = self._product()
        while sign := self._take("+", "-"):
            left = joined(sign, left, self._product())
        return left

    def _product(self) -> Evaluate:
        left = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            left = joined(sign, left, self._signed())
        return left

    def _signed(self) -> Evaluate:
        turns = 0
        while self._take("-"):
            turns += 1
        found = self._atom()
        return joined("-", lambda settings: 0, found) if turns % 2 else found

    def _atom(self) -> Evaluate:
        token = self._next
        self._place += 1
        if token.kind == "number":
            return constant(self._number(token))
        if token.kind == "text":
            return constant(token.text[1:-1])
        if token.kind == "name":
            return self._name(token)
        if token.text == "(" and token.kind == "sign":
            found = self._either()
            self._close()
            return found
        raise self._wrong(f"a setting or a value is missing before {token.text!r}", token)

    def _number(self, token: Token) -> int | float:
        number = int(token.text) if is_digits(token.text) else float(token.text)
        if number > MOST_NUMBER:
            raise self._wrong(f"{shown(token.text)} is too large a number", token)
        return number

    def _name(self, token: Token) -> Evaluate:
        name = token.text
        if name in FUNCTIONS and self._next.text == "(" and self._next.kind == "sign":
            self._place += 1
            self._deeper()
            arguments = self._arguments()
            self._depth -= 1
            return called(name, arguments)
        if name in self._names:
            self.used.add(name)
            return lambda settings: settings.get(name)
        if name in ("on", "off"):
            return constant(name == "on")
        if name in self._words:
            return constant(name)
        guess = nearest(name, [*self._names, *self._words, "and", "or", "not"])
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise self._wrong(f"{name!r} is no setting that this study gives, and no value of one{hint}", token)
