"""The tries of batch_size=auto are shown, whoever wrote the record."""

from __future__ import annotations

from typing import Any

import pytest
from documents import of_documents
from hypothesis import given
from hypothesis import strategies as st

from prony.report.lines import batch_lines

batch_lines = of_documents(batch_lines)

FITS = {"batch": 2048, "fits": True, "memory": 6 * 2**30, "room": 8 * 2**30, "reason": ""}
TOO_LARGE = {"batch": 3072, "fits": False, "memory": None, "room": 8 * 2**30, "reason": "out of memory:\n 9 GiB"}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


def test_each_try_is_a_line() -> None:
    assert batch_lines({"auto_batch": [FITS, TOO_LARGE]}) == [
        ("2,048", "fits: 6.000 GiB of 8.000 GiB"),
        ("3,072", "does not fit: out of memory: 9 GiB"),
    ]


@pytest.mark.parametrize("record", [{"auto_batch": None}, {"auto_batch": []}, {"auto_batch": [[], {"fits": True}]}])
def test_no_line_where_nothing_was_tried(record: dict[str, Any]) -> None:
    assert batch_lines(record) == []


@given(st.lists(st.dictionaries(st.sampled_from(sorted(FITS)), SCALARS) | SCALARS, max_size=4) | SCALARS)
def test_a_stranger_s_record_breaks_nothing(tries: Any) -> None:
    for batch, text in batch_lines({"auto_batch": tries}):
        assert batch.replace(",", "").isdigit()
        assert text.startswith(("fits", "does not fit"))
        assert text.isprintable()
