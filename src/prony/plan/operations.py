"""What the signs of an expression do with values: comparing, joining, calculating within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prony_node.contract.errors import RequestError

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
