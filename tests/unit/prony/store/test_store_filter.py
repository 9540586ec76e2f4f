"""The filter language: what it means, what it answers to mistakes, and that nothing breaks it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from prony.store import Store
from prony.store.query import (
    OPERATORS,
    StoreQuery,
    ask_records,
    ask_sql,
    find_field,
    parse_filter,
    parse_number,
    record_fields,
)
from prony_node.contract.errors import RequestError

FIELDS = record_fields()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The synthetic runs, indexed once."""
    replay = Path(__file__).parents[3] / "replay" / "records"
    root = Path(shutil.copytree(replay, tmp_path_factory.mktemp("asked") / "runs"))
    store = Store(root)
    store.refresh()
    return store


def ends(store: Store, where: str, sort: str | None = None, **more: object) -> list[str]:
    rows = ask_records(store, StoreQuery(where, sort, columns=("id",), **more)).rows  # type: ignore[arg-type]
    return [row[0][-6:] for row in rows]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("workload=resnet50 mode=infer", {"d00001"}),
        ("device~neoverse", {"e00001", "e00002"}),
        ("precision=bf16 batch_size>=512 mode!=infer", {"a04002", "c00000", "c00001", "c00002"}),
        ("precision=bf16,fp32 workload=gpt-tiny", {"e00001", "e00002"}),
        ("status!=ok", {"b00f07", "e00002"}),
        ("failure=out-of-memory", {"b00f07"}),
        ("failure!=out-of-memory workload=gpt-tiny", {"e00001", "e00002"}),
        ("failure!=none,out-of-memory", {"e00002"}),
        ("throughput=none status=failed", {"b00f07"}),
        ("peak_memory<4GiB mode=infer", {"d00001"}),
        ("mfu>18% workload=resnet50", {"d00001"}),
        ("step_time<23ms mode=infer", {"d00001"}),
        ("graphs=on mode=infer", {"d00001"}),
        ("effective.sequence=128 status=ok", {"e00001"}),
        ("asked.mode=infer", {"d00001"}),
        ("message~GiB", {"b00f07"}),
        ("device~100%", set()),
        ("device~'_VIDIA'", set()),
        ('device="NVIDIA H200" id~d00001', {"d00001"}),
        ("workload=\"x' OR '1'='1\"", set()),
    ],
)
def test_a_filter_finds_what_it_says(asked: Store, where: str, expected: set[str]) -> None:
    assert set(ends(asked, where)) == expected


def test_best_comes_first_and_nothing_last(asked: Store) -> None:
    by_rate = ask_records(asked, StoreQuery(sort="throughput", columns=("throughput",))).rows
    known = [row[0] for row in by_rate if row[0] is not None]
    assert known == sorted(known, reverse=True)
    assert by_rate[-1] == (None,)
    by_time = ask_records(asked, StoreQuery("step_time>0", "step_time", columns=("step_time",))).rows
    assert by_time == sorted(by_time)
    assert ask_records(asked, StoreQuery("step_time>0", "step_time", True, ("step_time",))).rows == by_time[::-1]
    assert ends(asked, "", limit=1) == ["e00002"], "newest first where nothing is asked"


def test_the_best_are_found_without_reading_and_sorting_all(asked: Store) -> None:
    """Of a million rows the first 50 by rate stand at the top of an index; what is asked most is read from one."""
    said: list[tuple[str, Any]] = []

    def hear(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        if "ORDER BY" in statement:
            said.append((f"EXPLAIN QUERY PLAN {statement}", values))

    event.listen(asked.database.engine, "before_cursor_execute", hear)
    ask_records(asked, StoreQuery("precision=bf16 devices>1 device~H200", "throughput", limit=50))
    ask_records(asked, StoreQuery("workload=resnet50 status=ok", "energy_per_sample", limit=50))
    event.remove(asked.database.engine, "before_cursor_execute", hear)
    with asked.database.reading() as connection:
        steps = [connection.exec_driver_sql(*one).all() for one in said]
    # The inner half of a question says which rows; the outer then looks up those 50.
    plans = [" ".join(step[3] for step in some if step[1] != 0) for some in steps]
    assert "COVERING INDEX ix_run_best" in plans[0]
    assert "TEMP B-TREE" not in plans[0]
    assert "COVERING INDEX ix_run_asked (workload=? AND status=?)" in plans[1]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("precison=bf16", "unknown field 'precison'; did you mean 'precision'"),
        ("precision", "is no term of a filter"),
        ("precision bf16", "is no term"),
        ("batch_size=large", "is a number, and 'large' is none"),
        ("batch_size~1", "~ looks for a part of a text"),
        ("graphs=yes", "is on or off"),
        ("recompute=yes", "is on or off or selective"),
        ("batch_size<1,2", "several values go with = and !="),
        ("mfu<none", "neither more nor less"),
        ("a=1 " * 60, "unknown field"),
        ("devices>1 " * 60, "may have 50 terms"),
        ("x" * 5000, "characters"),
        ("effective.a;b=1", "is no term"),
        ("device=a'b", "is no term"),
    ],
)
def test_a_mistake_is_a_sentence(where: str, said: str) -> None:
    with pytest.raises(RequestError, match=said.replace("(", r"\(")):
        parse_filter(where, FIELDS)


def test_a_flag_with_words_of_its_own_is_asked_for_by_them() -> None:
    terms = parse_filter("recompute=selective,on", FIELDS)
    assert terms[0].values == ("selective", True)


def test_units_are_few_and_exact() -> None:
    assert [parse_number(text) for text in ("40GiB", "5%", "20ms", "1e3", "-2.5", ".5")] == [
        40 * 2**30, 0.05, 0.02, 1000.0, -2.5, 0.5,
    ]  # fmt: skip
    assert [parse_number(text) for text in ("", "x", "1x", "1e9999", "--1", "0x10", "1_000")] == [None] * 7


def test_every_field_can_be_shown_and_sorted(asked: Store) -> None:
    for name in FIELDS:
        answer = ask_records(asked, StoreQuery(sort=name, columns=(name, "id"), limit=3))
        assert len(answer.rows) == 3, name


words = st.text(alphabet=st.sampled_from("abz09_.-=<>~!,'\"%; \\()*\n\0é"), max_size=12)
terms = st.builds("{}{}{}".format, st.sampled_from([*FIELDS, "effective.x"]), st.sampled_from(OPERATORS), words)


@settings(max_examples=60)
@given(st.one_of(st.text(max_size=60), st.lists(terms, max_size=4).map(" ".join)))
def test_whatever_is_typed_is_answered_or_refused(asked: Store, where: str) -> None:
    """No text reaches the database as SQL: it is an answer, or a sentence."""
    with contextlib.suppress(RequestError):
        ask_records(asked, StoreQuery(where, limit=2))
    assert asked.runs(limit=1), "the store is as it was"


@given(st.text(max_size=30))
def test_a_name_is_a_field_or_refused(name: str) -> None:
    try:
        assert find_field(name, FIELDS).name == name
    except RequestError:
        assert name not in FIELDS


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM run", "DROP TABLE run", "ATTACH 'x.db' AS x", "PRAGMA journal_mode=DELETE", "VACUUM INTO 'x.db'",
        "SELECT 1; DELETE FROM run", "SELECT load_extension('x')", "INSERT INTO anchor DEFAULT VALUES", "nonsense", "",
        "CREATE TEMP TABLE t (a)", "SELECT * FROM nowhere", "BEGIN",
    ],
)  # fmt: skip
def test_sql_only_reads(asked: Store, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if sql:
        with pytest.raises(RequestError, match="the SQL was refused"):
            ask_sql(asked, sql)
    else:
        assert ask_sql(asked, sql).rows == []
    assert list(tmp_path.iterdir()) == []
    assert ask_sql(asked, "SELECT count(*) FROM run").rows == [(13,)]


def test_sql_answers(asked: Store) -> None:
    answer = ask_sql(asked, "SELECT workload, count(*) AS n FROM run GROUP BY workload ORDER BY n DESC", limit=1)
    assert (answer.columns, answer.rows) == (["workload", "n"], [("wideresnet", 7)])
