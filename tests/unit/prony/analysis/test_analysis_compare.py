"""A comparison that hides what else differs, or calls noise a difference, misleads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prony.analysis.compare import FASTER, NOT_COMPARABLE, SAME, SLOWER, UNKNOWN, compare
from prony.analysis.sentences import sentences

GetRecord = Callable[[str], dict[str, Any]]


def set_rate(record: dict[str, Any], value: float, half: float | None = 0.005) -> dict[str, Any]:
    rate = record["metrics"]["throughput"]
    rate["value"] = value
    rate["low"], rate["high"] = (None, None) if half is None else (value / (1 + half), value * (1 + half))
    return record


def test_one_setting_and_a_clear_difference(get_record: GetRecord) -> None:
    found = compare(get_record("a00203"), get_record("a00200"))
    assert (found.verdict, found.question, found.confounded) == (FASTER, "precision", False)
    assert found.ratio == pytest.approx(12650 / 5210)
    assert found.ratio_low is not None
    assert found.ratio_low < found.ratio < (found.ratio_high or 0.0)
    assert found.saved == pytest.approx(1 - 5210 / 12650)
    assert found.saved_low is not None
    assert found.saved_low < found.saved < (found.saved_high or 0.0)


def test_swapping_the_sides_inverts_the_ratio(get_record: GetRecord) -> None:
    one, other = get_record("a00203"), get_record("a00200")
    forth, back = compare(one, other), compare(other, one)
    assert back.verdict == SLOWER
    assert (forth.ratio or 0) * (back.ratio or 0) == pytest.approx(1)
    assert (forth.ratio_low or 0) * (back.ratio_high or 0) == pytest.approx(1)


def test_interval_that_holds_one_shows_no_difference(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), get_record("c00001"))
    assert found.verdict == SAME
    assert sentences(found)[0].startswith("No difference shown")
    assert found.question is None
    assert "Nothing that is known to matter differs" in " ".join(sentences(found))


def test_one_run_a_side_says_that_it_covers_within_run_only(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), get_record("c00001"))
    assert (found.a.interval, found.b.interval) == ("within one run", "within one run")
    assert "within these two runs only" in " ".join(sentences(found))


def test_repeats_use_the_interval_between_runs(get_record: GetRecord) -> None:
    ours = [get_record(end) for end in ("c00000", "c00001", "c00002")]
    theirs = [set_rate(get_record(end), rate) for end, rate in (("c00000", 7000.0), ("c00001", 7010.0))]
    found = compare(ours, theirs)
    assert (found.a.interval, found.b.interval) == ("between 3 runs", "between 2 runs")
    assert found.a.low is not None
    assert found.a.low < 6843.0  # wider than any run's own
    assert "between runs (3 and 2 of them)" in " ".join(sentences(found))


def test_repeats_that_are_not_of_one_trial_are_refused(get_record: GetRecord) -> None:
    found = compare([get_record("a00200"), get_record("a01001")], get_record("c00000"))
    assert found.verdict == NOT_COMPARABLE
    assert found.reason == "the runs of side A are not repeats of one trial: batch_size differ"


def test_two_settings_are_confounded(get_record: GetRecord) -> None:
    found = compare(get_record("a00200"), get_record("a01004"))
    assert found.confounded_by == ["batch_size", "precision"]
    assert found.question is None
    assert "Confounded: batch_size and precision differ" in " ".join(sentences(found))


def test_setting_with_other_facts_is_confounded(get_record: GetRecord) -> None:
    theirs = get_record("a00200")
    theirs["facts"]["software"]["torch"] = "2.11.0"
    found = compare(get_record("a00203"), theirs)
    assert found.confounded_by == ["precision", "software"]
    assert [difference.name for difference in found.facts] == ["software.torch"]


def test_another_machine_alone_is_the_question(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["facts"]["devices"][0]["name"] = "NVIDIA H100 80GB HBM3"
    theirs["facts"]["host"]["cpu"]["model"] = "AMD EPYC 9554"
    found = compare(get_record("c00000"), theirs)
    assert (found.question, found.confounded) == ("machine", False)
    assert [difference.name for difference in found.facts] == ["devices.0.name", "host.cpu.model"]


def test_what_follows_from_the_mode_is_not_a_second_question(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), get_record("d00001"))
    assert found.question == "mode"
    assert "optimizer" in [difference.name for difference in found.settings]


def test_two_presets_are_one_question_with_what_they_chose(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["trial"]["effective"] |= {"preset": "plain", "precision": "fp32", "compile": "off"}
    theirs["trial"]["settings"] = {"preset": "plain"}
    found = compare(get_record("c00000"), theirs)
    assert (found.question, found.confounded_by) == ("preset", [])
    assert "Only preset differs, and what it chooses: precision and compile." in sentences(found)


def test_a_setting_that_was_asked_for_beside_another_preset_confounds(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["trial"]["effective"] |= {"preset": "plain", "precision": "fp32", "compile": "off"}
    theirs["trial"]["settings"] = {"preset": "plain", "precision": "fp32"}
    found = compare(get_record("c00000"), theirs)
    assert found.confounded_by == ["preset", "precision"]


@pytest.mark.parametrize(
    ("room", "name", "value"),
    [
        ("host", "load_average", [9.0, 9.0, 9.0]),
        ("host", "memory", {"total_bytes": 2 * 2**40, "available_bytes": 1}),
        ("host", "missing", [{"name": "product", "reason": "none"}]),
    ],
)
def test_volatile_facts_do_not_count(get_record: GetRecord, room: str, name: str, value: Any) -> None:
    theirs = get_record("c00001")
    theirs["facts"][room][name] = value
    found = compare(get_record("c00000"), theirs)
    assert found.facts == []


def test_temperature_and_present_clock_do_not_count_but_limits_do(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["facts"]["devices"][0] |= {"temperature_c": 80, "power_limit_w": 500.0}
    theirs["facts"]["devices"][0]["clocks"] = {"max_sm_mhz": 1980, "current_sm_mhz": 345}
    found = compare(get_record("c00000"), theirs)
    assert [difference.name for difference in found.facts] == ["devices.0.power_limit_w"]


def test_another_host_name_and_commit_are_notes(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["facts"]["host"]["hostname"] = "node018"
    theirs["facts"]["source"] = {"commit": "abc"}
    found = compare(get_record("c00000"), theirs)
    assert found.facts == []
    assert {difference.name for difference in found.noted} == {"host.hostname", "source.commit"}


def test_environment_counts(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["facts"]["environment"] = {"NVIDIA_TF32_OVERRIDE": "0", "SLURM_JOB_ID": "7"}
    found = compare(get_record("c00000"), theirs)
    assert [difference.name for difference in found.facts] == ["environment.NVIDIA_TF32_OVERRIDE"]


def test_units_that_differ_are_not_comparable(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), get_record("e00001"))
    assert (found.verdict, found.ratio) == (NOT_COMPARABLE, None)
    assert "images/s" in (found.reason or "")
    assert "tokens/s" in (found.reason or "")


def test_failed_run_is_not_comparable(get_record: GetRecord) -> None:
    found = compare(get_record("a04005"), get_record("b00f07"))
    assert found.verdict == NOT_COMPARABLE
    assert "out-of-memory" in (found.reason or "")
    assert sentences(found) == [f"Not comparable: {found.reason}."]


def test_rate_without_interval_gives_no_verdict(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), set_rate(get_record("c00001"), 9000.0, None))
    assert (found.verdict, found.ratio_low) == (UNKNOWN, None)
    assert "nothing says whether that is chance" in sentences(found)[0]


def test_checks_that_speak_against_a_side_are_doubts(get_record: GetRecord) -> None:
    found = compare(get_record("a04005"), get_record("a04002"))
    assert len(found.doubts) == 2
    assert "clocks warn" in found.doubts[0]


def test_slower_side_takes_more_time_in_words(get_record: GetRecord) -> None:
    ours, theirs = (
        set_rate(get_record("c00000"), 2000.0, 0.001),
        set_rate(get_record("c00001"), 1000.0, 0.001),
    )
    said = sentences(compare(ours, theirs))[0]
    assert said.startswith("B does 0.5 (0.4993 to 0.5007, 95 %) times the rate of A: it takes 100.0 %")
    assert said.endswith("more time than A.")


def test_comparison_as_json_names_its_schema(get_record: GetRecord) -> None:
    document = compare(get_record("a00200"), get_record("a01004")).to_json()
    assert document["schema"] == "prony.comparison/1"
    assert document["confounded"] is True
    assert document["settings"][0] == {"name": "batch_size", "a": 32, "b": 256}
