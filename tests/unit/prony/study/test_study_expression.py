"""Expressions: what they mean, what they refuse, and that no text makes anything but a value or a sentence."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony.study.space import MOST_CHARACTERS, parse_expression
from prony_node.contract import RequestError

NAMES = ("batch_size", "devices", "precision", "graphs", "workload")
WORDS = ("bf16", "fp16")
SETTINGS: dict[str, Any] = {"batch_size": 64, "precision": "bf16", "graphs": True, "workload": "vit-l"}


def value(text: str) -> Any:
    return parse_expression(text, NAMES, WORDS).value(SETTINGS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 - 3 - 4", -5),
        ("-2 * -3", 6),
        ("7 // 2 + 7 % 2", 4),
        ("1024 / batch_size", 16.0),
        ("0.1 * batch_size / 256", 0.025),
        ("3e-4 * 2", 6e-4),
        ("min(8, batch_size, 3 + 2)", 5),
        ("max(8, batch_size)", 64),
        ("batch_size >= 64 and precision == bf16", True),
        ("batch_size < 64 or not precision == fp16", True),
        ("not not graphs", True),
        ("graphs == on", True),
        ('workload in ("vit-l", "vit-h")', True),
        ("batch_size in (1, 2)", False),
        ("batch_size == bf16", False),
        ("devices > 1", False),
        ("devices == 1 or devices != 1", False),
        ("devices * 2", None),
    ],
)
def test_what_it_means(text: str, expected: Any) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("batchsize > 1", "character 1: 'batchsize' is no setting.*did you mean 'batch_size'"),
        ("1 +", "cannot be read: invalid syntax"),
        ("(1 + 2", "never closed"),
        ("1 < 2 < 3", "one comparison at a time"),
        ("1 / (batch_size - 64)", "divides by zero"),
        ("999999999999 * 999999999999", "too large"),
        ("9" * 30, "too large a number"),
        ("precision < 3", "not two numbers"),
        ("precision + 1", "no calculation"),
        ("batch_size and graphs", "`and` joins what holds"),
        ("1 ** 2", "cannot stand here"),
        ("batch_size if graphs else 1", "cannot stand here"),
        ("__import__('os').system('ls')", "cannot stand here"),
        ("batch_size.__class__", "cannot stand here"),
        ("(" * 199 + "1" + ")" * 199 + "+1", "at most 400|too many nested"),
        ("True", "no value of a setting"),
        ("1j", "no value of a setting"),
        ('f"{graphs}"', "cannot stand here"),
        ("[x for x in (1, 2)]", "cannot stand here"),
        ("(batch_size := 3)", "cannot stand here"),
        ("min(*(1, 2))", "cannot stand here"),
        ("min(1, key=2)", "cannot stand here"),
        ("batch_size is 64", "no comparison that is known"),
        ("  1 + ä_x", "character 7: 'ä_x' is no setting"),
        ("1" + "+1" * MOST_CHARACTERS, "at most 400 characters"),
        ("", "is missing"),
        ("  ", "is missing"),
    ],
)
def test_what_it_refuses(text: str, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        value(text)


def test_a_condition_must_hold_or_not() -> None:
    with pytest.raises(RequestError, match="not something that holds"):
        parse_expression("batch_size", NAMES).holds(SETTINGS)
    assert parse_expression("devices > 1 and batch_size > 1", NAMES).names == {"devices", "batch_size"}


PIECES = st.sampled_from(
    [*NAMES, *WORDS, "and", "or", "not", "in", "min", "(", ")", ",", "==", "<", "+", "-", "*", "/", "//", "%", "0", "7",
     "1.5", '"vit-l"', " ", "e", ".", "__", "\x00", "ä"]
)  # fmt: skip


@given(
    st.one_of(
        st.text(max_size=80), st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES, max_size=40).map(" ".join)
    )
)
def test_any_text_is_a_value_or_a_sentence(text: str) -> None:
    with contextlib.suppress(RequestError):
        found = value(text)
        assert found is None or isinstance(found, (str, int, float))
