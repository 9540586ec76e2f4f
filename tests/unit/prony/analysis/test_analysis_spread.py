"""A mean that hides who is not in it, or counts one seed three times, is worse than a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from documents import of_documents

from prony.analysis.variation import Spread, groups, independent
from prony.report.lines import spread_notes, spread_row, spread_title
from prony_node.stats import mean_interval

groups, independent = map(of_documents, (groups, independent))

GetRecord = Callable[[str], dict[str, Any]]
SEEDS = ("f00000", "f00001", "f00002")


def spread_of(records: list[dict[str, Any]], name: str) -> Spread:
    (group,) = groups(records)
    return next(spread for spread in group.spreads if spread.name == name)


def test_seeds_are_one_group_and_other_settings_are_not(get_record: GetRecord) -> None:
    found = groups([get_record(end) for end in (*SEEDS, "f20000", "f20001")])
    assert [len(group.records) for group in found] == [3, 1, 1]
    assert found[0].seeds == [0, 1, 2]
    assert "seed" not in found[0].settings
    title = spread_title(found[0])
    assert title == "wideresnet data=./cifar10 batch_size=1024 epochs=20 until=accuracy>=0.93: 3 seeds (0, 1, 2)"


def test_the_interval_is_students(get_record: GetRecord) -> None:
    records = [get_record(end) for end in SEEDS]
    values = [record["metrics"]["quality"]["value"] for record in records]
    found, expected = spread_of(records, "quality"), mean_interval(values)
    assert (found.mean, found.low, found.high) == (expected.mean, expected.low, expected.high)
    assert (found.deviation, found.least, found.most) == (expected.standard_deviation, min(values), max(values))
    assert spread_row(found) == ["accuracy", "0.9353", "0.9289 to 0.9416", "0.0026", "0.9335 to 0.9382", "3"]


def test_runs_of_a_seed_count_once(get_record: GetRecord) -> None:
    again = get_record("f00000")
    again["metrics"]["quality"]["value"] = 0.9402
    records = [get_record(end) for end in SEEDS] + [again]
    assert independent(records, "quality") == pytest.approx([0.9392, 0.9335, 0.9341])
    assert spread_of(records, "quality").count == 3
    assert "4 runs; those of a seed are averaged first" in spread_title(groups(records)[0])
    assert len(independent([records[0], again], "quality")) == 2


def test_who_did_not_reach_the_target_is_told(get_record: GetRecord) -> None:
    records = [get_record(end) for end in (*SEEDS, "f00003")]
    (group,) = groups(records)
    assert [(spread.name, spread.count) for spread in group.spreads] == [
        ("quality", 4), ("time_to_quality", 3), ("energy_to_quality", 3), ("throughput", 4),
    ]  # fmt: skip
    (note,) = spread_notes(group)
    assert note.startswith("1 of 4 runs did not reach accuracy>=0.93")


def test_failed_and_interrupted_runs_are_left_out_and_counted(get_record: GetRecord) -> None:
    records = [get_record(end) for end in SEEDS]
    records[1] |= {"status": "interrupted", "failure": {"kind": "interrupted", "message": "Ctrl-C"}}
    (group,) = groups(records)
    assert (len(group.records), group.left_out, group.seeds) == (2, 1, [0, 2])
    assert spread_notes(group) == ["1 more failed or ended early and is left out"]


def test_one_value_has_no_interval_and_no_deviation(get_record: GetRecord) -> None:
    found = spread_of([get_record("f00000")], "quality")
    assert (found.low, found.high, found.deviation) == (None, None, None)
    assert spread_row(found)[2:4] == ["–", "–"]


def test_another_machine_or_model_file_is_another_group(get_record: GetRecord) -> None:
    records = [get_record("f00000"), get_record("f00001"), get_record("f00002")]
    records[1]["fingerprint"]["machine"] = "another"
    records[2]["trial"]["file"] = {"path": "m.py", "sha256": "0"}
    assert len(groups(records)) == 3
