"""A space of trials: axes, zipped groups, conditions, derived values, exclusions, and the small language of these."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from prony_node.contract.errors import RequestError, is_digits, nearest
from prony_node.contract.settings import COUNT_LIMIT, SETTINGS, Setting, Value
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads.config import Workload

# The small language of conditions, exclusions and derived values: read by Python's parser, never run as Python.


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


# A space of trials: axes of values, zipped groups, conditions, derived values, exclusions; expanded lazily.


MOST_VALUES = 10_000
DOUBLES = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})")
STEPS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})(?::([0-9]{1,12}))?")


def split_values(setting: Setting, text: str) -> list[str]:
    """The values of one text: `16,32`, `16..4096` (doubling), `1:9:2` (steps). Ranges are for whole numbers.

    Values are separated by commas; those of cores and kernels, which hold commas themselves, by semicolons.
    """
    values = [value.strip() for value in text.split(setting.separator)]
    if not all(values):
        raise RequestError(f"{setting.name}={text} has an empty value in its list")
    found = [one for value in values for one in expand_range(setting, value)]
    return list(dict.fromkeys(found))


def expand_range(setting: Setting, text: str) -> list[str]:
    """The whole numbers that a range stands for; any other value as it is."""
    if setting.kind != "count":
        return [text]
    if match := DOUBLES.fullmatch(text):
        return _doubled(setting, text, int(match.group(1)), int(match.group(2)))
    if match := STEPS.fullmatch(text):
        first, last, step = int(match.group(1)), int(match.group(2)), int(match.group(3) or 1)
        if step < 1:
            raise RequestError(f"{setting.name}={text} never ends: a step is at least 1")
        return _some(setting, text, range(first, last + 1, step))
    return [text]


def _doubled(setting: Setting, text: str, first: int, last: int) -> list[str]:
    if first < 1:
        raise RequestError(f"{setting.name}={text} never ends: 0 doubled is 0; begin with 1, or write 0,1..8")
    found, number = [], first
    while number <= min(last, COUNT_LIMIT):
        found.append(number)
        number *= 2
    return _some(setting, text, found)


def _some(setting: Setting, text: str, numbers: range | list[int]) -> list[str]:
    if not numbers:
        raise RequestError(f"{setting.name}={text} is empty: its end lies before its beginning")
    if len(numbers) > MOST_VALUES:
        raise RequestError(f"{setting.name}={text} has {len(numbers):,} values; at most {MOST_VALUES:,} are possible")
    return [str(number) for number in numbers]


Answer = TypeVar("Answer")
Ask = Callable[[dict[str, Value]], Answer]  # of the settings given so far
_Axis = tuple[tuple[str, ...], list[tuple[Value, ...]], Ask[bool] | None]  # names, typed rows, condition
MOST_COMBINATIONS = 2_000_000  # before conditions and exclusions, which take time themselves
WORKLOAD = "workload"  # how an expression names it
SEED = "seed"


@dataclass(frozen=True)
class Axis:
    """One setting with its values, or several that change together; a row holds a value for each."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    when: Expression | None = None  # where it does not hold, the trial goes without these settings


@dataclass(frozen=True)
class Derived:
    """A setting whose value follows from those of the others."""

    name: str
    value: Expression
    when: Expression | None = None


@dataclass(frozen=True)
class StudyPart:
    """Workloads with the settings they are to be run with, every combination."""

    name: str
    workloads: tuple[Workload, ...]
    axes: tuple[Axis, ...] = ()
    derived: tuple[Derived, ...] = ()
    exclude: tuple[Expression, ...] = ()
    stop: Stop = field(default_factory=Stop)
    repeats: int = 1
    dataset: str = ""  # the published data set that its trials stand for; "": any


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial of a study, and why it would be refused, where it would."""

    trial: Trial
    workload: Workload
    part: StudyPart
    refused: str | None = None
    datasets: frozenset[str] = frozenset()  # of all parts that have the trial


def known_settings(workload: Workload) -> dict[str, Setting]:
    return SETTINGS | {setting.name: setting for setting in workload.own_settings()}


def expand(parts: Sequence[StudyPart]) -> list[Planned]:
    """Every trial once, part after part, the last setting varying fastest.

    The first part to name a trial has it, with as many repeats as any part asks of it.
    """
    found: dict[str, Planned] = {}
    _refuse_endless(parts)
    for part in parts:
        for workload in part.workloads:
            for planned in map(_planning(part, workload), _combinations(part, workload)):
                before = found.setdefault(planned.trial.hash, planned)
                if part.dataset not in before.datasets:
                    before = replace(before, datasets=before.datasets | {part.dataset})
                if before.part.repeats < part.repeats:
                    before = replace(before, part=replace(before.part, repeats=part.repeats))
                found[planned.trial.hash] = before
    return list(found.values())


def count_combinations(parts: Iterable[StudyPart]) -> int:
    """How many there are before conditions and exclusions."""
    return sum(len(part.workloads) * math.prod(len(axis.rows) for axis in part.axes) for part in parts)


def _refuse_endless(parts: Iterable[StudyPart]) -> None:
    count = count_combinations(parts)
    if count > MOST_COMBINATIONS:
        raise RequestError(
            f"these settings have {count:,} combinations, and nobody would wait for more than {MOST_COMBINATIONS:,}"
        )


def _planning(part: StudyPart, workload: Workload) -> Ask[Planned]:
    """What makes trials of settings. Those that differ in the seed alone are possible or not alike: one is checked."""
    free = "" if any(derived.name == SEED for derived in part.derived) else SEED
    known: dict[tuple[object, ...], tuple[dict[str, Value], str | None]] = {}

    def plan(given: dict[str, Value]) -> Planned:
        rest = {name: value for name, value in given.items() if name != free}
        key = (*rest.items(), *map(type, rest.values()))
        if key not in known:
            known[key] = _checked(workload, given)
        settings, refused = known[key]
        own = {free: given[free]} if free in given else {}
        return Planned(Trial(workload.name, settings | own), workload, part, refused)

    return plan


def _checked(workload: Workload, given: dict[str, Value]) -> tuple[dict[str, Value], str | None]:
    """The settings as the workload reads them, or as given with the reason why it would not take them."""
    try:
        return workload.parse(given), None
    except RequestError as error:
        return given, str(error)


def _combinations(part: StudyPart, workload: Workload) -> Iterator[dict[str, Value]]:
    settings = known_settings(workload)
    axes = [(axis.names, _typed(axis, settings), _condition(axis.when, workload)) for axis in part.axes]
    derive = [_deriving(derived, settings, workload) for derived in part.derived]
    excluded = [_remembered(one, one.holds, workload) for one in part.exclude]
    for given in _product(axes, 0, {}):
        for put in derive:
            put(given)
        if not any(holds(given) for holds in excluded):
            yield given


def _product(axes: Sequence[_Axis], depth: int, given: dict[str, Value]) -> Iterator[dict[str, Value]]:
    if depth == len(axes):
        yield dict(given)
        return
    names, rows, holds = axes[depth]
    if holds is not None and not holds(given):
        yield from _product(axes, depth + 1, given)
        return
    for row in rows:
        given.update(zip(names, row, strict=True))
        yield from _product(axes, depth + 1, given)
    for name in names:
        del given[name]


def _condition(when: Expression | None, workload: Workload) -> Ask[bool] | None:
    return None if when is None else _remembered(when, when.holds, workload)


def _remembered(expression: Expression, ask: Callable[[Values], Answer], workload: Workload) -> Ask[Answer]:
    """An expression's answer for settings, found once for each combination of those that it names."""
    names = tuple(expression.names)
    known: dict[tuple[object, ...], Answer] = {}

    def answer(given: dict[str, Value]) -> Answer:
        values = tuple(map(given.get, names))
        key = (values, *map(type, values))  # on and 1 are equal, and not the same
        if key not in known:
            known[key] = ask(scalars(workload.name, given))
        return known[key]

    return answer


def _typed(axis: Axis, settings: Mapping[str, Setting]) -> list[tuple[Value, ...]]:
    """The axis' values as this workload reads them; a setting that it does not know keeps its text, and is refused."""
    readers = [settings.get(name) for name in axis.names]
    rows = [
        tuple(reader.parse(text) if reader else text for reader, text in zip(readers, row, strict=True))
        for row in axis.rows
    ]
    return list(dict.fromkeys(rows))


def _deriving(derived: Derived, settings: Mapping[str, Setting], workload: Workload) -> Ask[None]:
    """What puts a derived setting to the others, where it has a value."""
    holds = _condition(derived.when, workload)
    find = _remembered(derived.value, derived.value.value, workload)

    def put(given: dict[str, Value]) -> None:
        value = find(given) if holds is None or holds(given) else None
        if value is not None:
            given[derived.name] = _as_setting(value, settings.get(derived.name))

    return put


def _as_setting(value: Scalar, setting: Setting | None) -> Value:
    """A derived number as the setting reads it: 8.0 is the count 8, 0.05 the text of a learning rate."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or setting is None or setting.kind in ("count", "flag"):
        return value if not isinstance(value, float) else f"{value:.12g}"
    return value if isinstance(value, str) else f"{value:.12g}"


def scalars(workload: str, given: Mapping[str, Value]) -> dict[str, Scalar]:
    """The settings as expressions see them: the text of a number is that number."""
    known: dict[str, Scalar] = {WORKLOAD: workload}
    for name, value in given.items():
        known[name] = _number(value) if isinstance(value, str) and is_digits(value[:1]) else value
    return known


def _number(text: str) -> Scalar:
    try:
        return float(text)
    except ValueError:
        return text
