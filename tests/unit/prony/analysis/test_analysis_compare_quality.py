"""A seed taken for a cause, or a chance difference of accuracy taken for a better model, misleads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents

from prony.analysis.compare import (
    HIGHER,
    LOWER,
    QUALITY_NOT_COMPARABLE,
    SAME_QUALITY,
    UNKNOWN_QUALITY,
    compare,
    compare_quality,
)
from prony.analysis.sentences import sentences
from prony.analysis.summary import how_changed
from prony_node.contract.run_folder import NO, marked
from prony_node.stats import difference_interval

compare, compare_quality, how_changed = map(of_documents, (compare, compare_quality, how_changed))

GetRecord = Callable[[str], dict[str, Any]]
SEEDS = ("f00000", "f00001", "f00002")


def with_values(get_record: GetRecord, end: str, values: list[float], batch: int) -> list[dict[str, Any]]:
    """Runs of one batch size, a seed each, that ended with these qualities."""
    records = []
    for seed, value in enumerate(values):
        record = get_record(end)
        record["id"] = f"b{batch}-{seed}"
        record["trial"]["effective"] |= {"seed": seed, "batch_size": batch}
        record["metrics"]["quality"] |= {"value": value, "low": value - 0.005, "high": value + 0.005}
        records.append(record)
    return records


def test_seeds_on_a_side_are_repeats(get_record: GetRecord) -> None:
    found = compare([get_record(end) for end in SEEDS], get_record("f00003"))
    assert (found.a.interval, found.reason, found.confounded_by, found.question) == ("between 3 runs", None, [], None)
    assert [(one.name, one.a, one.b) for one in found.settings] == [("seed", "0, 1, 2", 3)]
    assert "Only the seed differs: the two sides are repeats of one trial." in sentences(found)


def test_a_seed_beside_a_setting_confounds_nothing(get_record: GetRecord) -> None:
    other = get_record("f20001")
    other["trial"]["effective"]["seed"] = 9
    found = compare(get_record("f20000"), other)
    assert (found.question, found.confounded) == ("batch_size", False)
    other["facts"]["software"]["torch"] = "2.11.0"
    assert compare(get_record("f20000"), other).confounded_by == ["batch_size", "software"]


def test_seeds_alone_do_not_make_other_trials_repeats(get_record: GetRecord) -> None:
    found = compare([get_record("f20000"), get_record("f20001")], get_record("f20002"))
    assert found.reason == "the runs of side A are not repeats of one trial: batch_size differ"
    assert found.quality is None


def test_a_clear_difference_over_seeds(get_record: GetRecord) -> None:
    ours = with_values(get_record, "f20000", [0.934, 0.936, 0.935], 128)
    theirs = with_values(get_record, "f20000", [0.874, 0.877, 0.876], 8192)
    found = compare(ours, theirs)
    assert found.quality is not None
    expected = difference_interval([0.874, 0.877, 0.876], [0.934, 0.936, 0.935])
    assert (found.quality.verdict, found.quality.low, found.quality.high) == (LOWER, expected.low, expected.high)
    said = " ".join(sentences(found))
    assert "Only batch_size differs" in said
    assert "B has 0.8757 and A 0.935, so B's is 0.0593" in said
    assert "lower, which is worse" in said
    assert "between seeds (3 and 3 of them)" in said
    back = compare_quality(theirs, ours)
    assert back is not None
    assert (back.verdict, back.difference) == (HIGHER, pytest.approx(0.05933, abs=1e-4))


def test_the_quality_of_a_record_that_was_edited_is_not_compared(get_record: GetRecord) -> None:
    ours = with_values(get_record, "f20000", [0.934, 0.936, 0.935], 128)
    theirs = with_values(get_record, "f20000", [0.874, 0.877, 0.876], 8192)
    edited = marked(theirs[2], NO, Path("/runs/edited"))
    found = compare_quality(ours, [*theirs[:2], edited])
    assert found is not None
    assert (found.verdict, found.reason) == (QUALITY_NOT_COMPARABLE, f"{edited['id']} was {how_changed(edited)}")


def test_an_interval_that_holds_0_shows_no_difference(get_record: GetRecord) -> None:
    ours = with_values(get_record, "f20000", [0.934, 0.936, 0.931], 128)
    theirs = with_values(get_record, "f20000", [0.935, 0.930, 0.936], 512)
    found = compare(ours, theirs)
    assert found.quality is not None
    assert found.quality.verdict == SAME_QUALITY
    assert any(text.startswith("No difference in accuracy shown") for text in sentences(found))


def test_one_run_a_side_covers_the_test_split_alone(get_record: GetRecord) -> None:
    found = compare(get_record("f20000"), get_record("f20003"))
    assert found.quality is not None
    a, b = (get_record(end)["metrics"]["quality"] for end in ("f20000", "f20003"))
    down = ((b["value"] - b["low"]) ** 2 + (a["high"] - a["value"]) ** 2) ** 0.5
    assert found.quality.low == pytest.approx(b["value"] - a["value"] - down)
    assert "the size of the test split alone, not other seeds" in " ".join(sentences(found))


def test_a_loss_of_one_run_has_no_interval_and_less_of_it_is_better(get_record: GetRecord) -> None:
    ours, theirs = get_record("f10000"), get_record("f10000")
    theirs["id"] = "other"
    theirs["metrics"]["quality"]["value"] = 0.3
    alone = compare_quality([ours], [theirs])
    assert alone is not None
    assert (alone.verdict, alone.low) == (UNKNOWN_QUALITY, None)
    assert "nothing says whether that is chance" in " ".join(sentences(compare(ours, theirs)))
    ours_too = with_values(get_record, "f10000", [0.34, 0.35, 0.345], 128)
    less = with_values(get_record, "f10000", [0.24, 0.25, 0.245], 512)
    assert "lower, which is better" in " ".join(sentences(compare(ours_too, less)))


def test_sides_that_all_reached_their_target_are_compared_by_the_time_to_it(get_record: GetRecord) -> None:
    ours = [get_record(end) for end in SEEDS]
    theirs = [get_record(end) for end in SEEDS]
    for record in theirs:
        record["id"] += "-b"
        record["trial"]["effective"]["batch_size"] = 512
        record["metrics"]["time_to_quality"]["value"] *= 2.0
    found = compare(ours, theirs).quality
    assert found is not None
    assert found.times is not None
    assert found.times.ratio == pytest.approx(2.0)
    assert (found.times.low or 9.0) < 2.0 < (found.times.high or 0.0)
    assert "All runs ended on reaching accuracy>=0.93" in " ".join(sentences(compare(ours, theirs)))


def test_a_target_that_was_missed_gives_no_ratio_of_times(get_record: GetRecord) -> None:
    found = compare([get_record(end) for end in SEEDS], get_record("f00003"))
    assert found.quality is not None
    assert (found.quality.times, found.quality.reached, found.quality.runs) == (None, (3, 0), (3, 1))
    assert "was reached by 3 of 3 of A and by 0 of 1 of B" in " ".join(sentences(found))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": {"quality": {"unit": "loss"}}}, "A is scored by accuracy and B by loss"),
        ({"data": {"fingerprint": "feedfeed"}}, "they were scored on different data (3f9a1c57e02b64d8, feedfeed)"),
    ],
)
def test_what_is_not_the_same_score_is_not_comparable(
    get_record: GetRecord, change: dict[str, Any], reason: str
) -> None:
    other = get_record("f20001")
    other["metrics"]["quality"] |= change.get("metrics", {}).get("quality", {})
    other["data"] |= change.get("data", {})
    found = compare(get_record("f20000"), other)
    assert found.quality is not None
    assert (found.quality.verdict, found.quality.reason) == (QUALITY_NOT_COMPARABLE, reason)
    assert f"Their quality is not comparable: {reason}." in sentences(found)


def test_runs_that_learned_nothing_have_no_difference_of_quality(get_record: GetRecord) -> None:
    assert compare(get_record("a00203"), get_record("a00200")).quality is None
    assert compare(get_record("a00203"), get_record("f20000")).quality is None
    half = compare_quality([get_record("f20000"), get_record("a00200")], [get_record("f20001")])
    assert half is not None
    assert half.reason == "not every run of side A has a quality"


def test_json_holds_the_difference(get_record: GetRecord) -> None:
    document = compare(get_record("f20000"), get_record("f20003")).to_json()
    assert document["quality"]["verdict"] == LOWER
    assert document["quality"]["score"] == "accuracy"
    assert compare(get_record("a00203"), get_record("a00200")).to_json()["quality"] is None
