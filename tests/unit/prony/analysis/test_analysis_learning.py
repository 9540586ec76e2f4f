"""A learning curve is read for what it says, whatever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from documents import of_documents, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.analysis.compare import compare_quality
from prony.analysis.summary import is_reached, learning_of, quality_of, thinned
from prony.analysis.variation import groups
from prony.report.lines import curve_table, data_lines, learning_lines
from prony.report.numbers import format_quality
from prony.report.series import curves
from prony_node.contract.errors import RequestError

compare_quality, learning_of, quality_of, groups = map(of_documents, (compare_quality, learning_of, quality_of, groups))
curve_table, data_lines, learning_lines, curves = map(of_documents, (curve_table, data_lines, learning_lines, curves))

GetRecord = Callable[[str], dict[str, Any]]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
LEARNING = ("score", "better", "target", "until", "reached", "test_samples", "epochs", "curve")
POINT = ("epoch", "steps", "samples", "training_s", "evaluation_s", "learning_rate", "accuracy", "loss")
DATA = ("source", "kind", "folder", "samples", "test_samples", "classes", "bytes", "fingerprint", "held", "staged",
        "generated", "files", "copied_bytes", "seconds")  # fmt: skip


def some_of(names: tuple[str, ...], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(names), values, max_size=len(names))


def test_a_run_that_reached_its_target(get_record: GetRecord) -> None:
    record = get_record("f00002")
    learning, quality = learning_of(record), quality_of(record)
    assert learning is not None
    assert (learning.score, learning.target, learning.until) == ("accuracy", 0.93, "accuracy>=0.93")
    assert (learning.reached, learning.reached_epoch, learning.epochs) == (True, 19, 20)
    assert [is_reached(learning, point) for point in learning.curve] == [False] * 18 + [True]
    assert quality is not None
    assert (quality.value, quality.epoch, quality.reached, quality.time_s) == (0.9341, 19, True, 34.5253)


def test_the_epoch_of_a_quality_is_the_one_in_which_it_was_scored(get_record: GetRecord) -> None:
    record = get_record("f00003")
    best = max(record["learning"]["curve"], key=lambda point: point["accuracy"])
    record["metrics"]["quality"]["value"] = best["accuracy"]
    found = quality_of(record)
    assert found is not None
    assert (found.epoch, found.reached, found.time_s) == (best["epoch"], False, None)
    record["metrics"]["quality"]["value"] = 0.5123
    found = quality_of(record)
    assert found is not None
    assert found.epoch is None


def test_other_records_learned_nothing(get_record: GetRecord) -> None:
    record = get_record("d00001")
    assert (learning_of(record), quality_of(record), curve_table(record)) == (None, None, None)
    assert (learning_lines(record), data_lines(record)) == ([], [])


@pytest.mark.parametrize(("epochs", "reached"), [(13, 7), (100, 41), (100, 1), (1000, 1000), (5000, None)])
def test_a_long_curve_keeps_its_ends_and_its_target(get_record: GetRecord, epochs: int, reached: int | None) -> None:
    record = get_record("f00003")
    record["learning"]["curve"] = [{"epoch": number, "accuracy": 0.5} for number in range(1, epochs + 1)]
    record["learning"]["reached"] = None if reached is None else {"epoch": reached}
    learning = learning_of(record)
    assert learning is not None
    kept = [point.epoch for point in thinned(learning)]
    assert len(kept) == 12
    assert {1, epochs, reached or 1} <= set(kept)
    assert kept == sorted(kept, key=lambda epoch: epoch or 0)
    table = curve_table(record)
    assert table is not None
    assert table.left_out == epochs - 12
    assert (table.reached is None) == (reached is None)


@settings(max_examples=40)
@given(st.one_of(anything, some_of(LEARNING, anything | st.lists(some_of(POINT, anything), max_size=20))),
       anything | some_of(DATA, anything | some_of(DATA, anything)))  # fmt: skip
def test_whatever_a_record_states_it_can_be_shown_or_is_refused(learning: Any, data: Any) -> None:
    metric = {"value": 0.9, "low": None, "high": None, "unit": "accuracy", "scope": "test split", "source": "s"}
    document = {
        "id": "r", "status": "ok", "trial": {"workload": "w", "settings": {}, "effective": {}}, "facts": {},
        "metrics": {"quality": metric}, "learning": learning, "data": data,
    }  # fmt: skip
    try:
        record = typed(document)
    except RequestError:
        return
    table, quality = curve_table(record), quality_of(record)
    assert quality is not None
    said = [format_quality(quality), *(text for _, text in (*learning_lines(record), *data_lines(record)))]
    said += [cell for row in (table.rows if table else []) for cell in row]
    assert all(text and "\n" not in text and "\x1b" not in text for text in said)
    assert json.dumps([len(found.lines) for found in curves([record])])
    assert groups([record, record])[0].spreads[0].mean == 0.9
    assert compare_quality([record], [record]) is not None
