"""A comparison that hides what else differs, or calls noise a difference, misleads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from documents import of_documents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prony.analysis.compare import FASTER, NOT_COMPARABLE, SAME, SLOWER, UNKNOWN, compare, slowdown
from prony.analysis.sentences import sentences, slowdown_sentence

compare = of_documents(compare)

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


def test_the_first_sentence_says_what_one_run_per_side_rests_on(get_record: GetRecord) -> None:
    found = compare(get_record("c00000"), get_record("c00001"))
    assert (found.a.interval, found.b.interval) == ("between-run SD from the prior",) * 2
    assert "one run per side, between-run SD not measured: heavy-tailed prior of 0.25 % assumed" in sentences(found)[0]


@pytest.mark.parametrize("change", [0.97, 0.99, 1.01, 1.03])
def test_precise_runs_that_differ_by_what_repeats_vary_are_not_told_apart(get_record: GetRecord, change: float) -> None:
    """Within-run intervals of 0.02 % said "faster" of a fifth of the true repeats in results/."""
    ours = set_rate(get_record("c00000"), 2454.6, 0.0002)
    theirs = set_rate(get_record("c00001"), 2454.6 * change, 0.0002)
    assert compare(ours, theirs).verdict == SAME


def test_a_cold_and_a_warm_compile_cache_are_a_named_difference(get_record: GetRecord) -> None:
    ours, theirs = set_rate(get_record("c00000"), 2454.6, 0.0001), set_rate(get_record("c00001"), 2108.9, 0.0001)
    for record, state in ((ours, "cold"), (theirs, "warm")):
        record["phases"]["cold_start"] = {"seconds": 9.0, "compile_cache": {"state": state}}
    found = compare(ours, theirs)
    said = sentences(found)
    assert found.verdict == SLOWER
    assert said[0].startswith("B is 0.86x as fast as A (95 % CI 0.82 to 0.90; one run per side, ")
    assert said[1] == "B takes 16.4 % (11.3 % to 21.7 %) more time than A."
    cause = (
        "onfounded: only the compile cache differs, cold for A and warm for B, so this is no difference of settings or "
        "code. Repeat both with a warm cache"
    )
    assert f"C{cause}." in said
    assert (found.question, found.confounded_by) == (None, ["compile cache"])
    assert slowdown(found, 0.02) is None
    assert slowdown_sentence(None, 0.02, found) == f"nothing can be concluded: c{cause}"
    theirs["trial"]["effective"]["precision"] = "fp16"
    assert compare(ours, theirs).confounded_by == ["precision", "compile cache"]


def test_the_compile_cache_as_a_setting_is_a_question_and_is_answered(get_record: GetRecord) -> None:
    ours, theirs = set_rate(get_record("c00000"), 2454.6, 0.0001), set_rate(get_record("c00001"), 2108.9, 0.0001)
    for record, state in ((ours, "warm"), (theirs, "cold")):
        record["phases"]["cold_start"] = {"seconds": 9.0, "compile_cache": {"state": state}}
        record["trial"]["effective"]["compile_cache"] = state
    found = compare(ours, theirs)
    assert (found.question, found.confounded, slowdown(found, 0.02)) == ("compile_cache", False, True)


def test_a_confounded_comparison_answers_no_question_of_a_slowdown(get_record: GetRecord) -> None:
    """What else differs may make a slowdown, or hide one."""
    ours, theirs = set_rate(get_record("c00000"), 2000.0, 0.001), set_rate(get_record("c00001"), 1000.0, 0.001)
    theirs["facts"]["software"]["torch"] = "2.11.0"
    assert slowdown(compare(ours, theirs), 0.02) is True  # one thing differs
    theirs["facts"]["devices"][0]["name"] = "NVIDIA H100 80GB HBM3"
    found = compare(ours, theirs)
    assert (found.verdict, found.confounded, slowdown(found, 0.02)) == (SLOWER, True, None)
    assert slowdown(compare(theirs, ours), 0.02) is None
    assert slowdown_sentence(None, 0.02, found).startswith("nothing can be concluded: confounded: machine and software")


@pytest.mark.parametrize(("gain", "verdict"), [(1.0008, SAME), (1.02, FASTER)])
def test_repeats_of_older_records_are_told_apart_beyond_the_floor_of_their_windows(
    get_record: GetRecord, gain: float, verdict: str
) -> None:
    """As stored, three runs of 8 s with ± 0.003 % that agree by chance showed 0.08 %."""
    sides = []
    for factor in (1.0, gain):
        runs = [set_rate(get_record(f"c0000{n}"), factor * (1000.0 + 0.01 * n), 0.00003) for n in range(3)]
        for run in runs:
            run |= {"schema": "prony.record/1", "steady": {"window_s": 8.0}}
        sides.append(runs)
    of_today = ([run | {"schema": "prony.record/2"} for run in runs] for runs in sides)
    assert compare(*of_today).verdict == FASTER
    assert compare(*sides).verdict == verdict


def test_a_side_with_runs_of_both_cache_states_is_doubted(get_record: GetRecord) -> None:
    ours = [get_record("c00000"), get_record("c00001")]
    for record, state in zip(ours, ("cold", "warm"), strict=True):
        record["phases"]["cold_start"] = {"seconds": 9.0, "compile_cache": {"state": state}}
    found = compare(ours, get_record("c00002"))
    assert "the runs of side A had different compile caches: cold and warm" in found.doubts


def interleaved(get_record: GetRecord, order: str, drift: float, gain: float) -> dict[str, list[dict[str, Any]]]:
    sides: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
    for place, name in enumerate(order):
        noise = 1.0 + 0.001 * (-1) ** (place // 2)
        rate = 7000.0 * (1.0 + drift * place) * noise * (gain if name == "B" else 1.0)
        record = set_rate(get_record("c00000"), rate, 0.0005)
        record |= {"id": f"{name}{place}", "started": f"2026-01-01T00:{place:02d}:00+00:00"}
        sides[name].append(record)
    return sides


def test_an_interleaved_comparison_is_paired_whatever_the_order_of_the_words(get_record: GetRecord) -> None:
    sides = interleaved(get_record, "ABBAABBA", drift=-0.004, gain=1.012)
    found = compare(sides["A"], sides["B"][::-1])
    assert (found.method, found.verdict) == ("paired", FASTER)
    assert "4 interleaved pairs" in sentences(found)[0]
    alone = compare(sides["A"], sides["B"], paired=False)
    assert (alone.method, alone.verdict) == ("Welch", SAME)


def test_a_drift_over_ABAB_is_no_difference(get_record: GetRecord) -> None:
    """B is always second, so each pair has the drift of one run: paired, 55 % of equal sides were "slower"."""
    sides = interleaved(get_record, "ABABABAB", drift=-0.004, gain=1.0)
    found = compare(sides["A"], sides["B"], paired=True)
    assert found.verdict == SLOWER
    assert any("A ran before B in every pair" in doubt for doubt in found.doubts)
    found = compare(sides["A"], sides["B"])
    assert (found.method, found.verdict) == ("Welch", SAME)


@pytest.mark.parametrize("order", ["AAAABBBB", "ABABABAABB", "ABABABBA"])
def test_runs_that_were_not_interleaved_are_not_paired(get_record: GetRecord, order: str) -> None:
    sides = interleaved(get_record, order, drift=0.0, gain=1.02)
    assert compare(sides["A"], sides["B"]).method == "Welch"


def test_two_pairs_never_decide(get_record: GetRecord) -> None:
    sides = interleaved(get_record, "ABBA", drift=0.0, gain=2.0)
    found = compare(sides["A"], sides["B"], paired=True)
    assert (found.verdict, found.ratio_low, found.reason) == (UNKNOWN, None, "fewer than three pairs decide nothing")
    assert sentences(found)[0].startswith("No conclusion: B is 2x as fast as A")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((1000.0, 1001.0, 999.0), False),  # no slowdown
        ((1100.0, 1101.0, 1099.0), False),  # faster
        ((990.0, 991.0, 989.0), False),  # slower by 1 %, and surely not by 2 %
        ((900.0, 901.0, 899.0), True),
        ((980.0, 983.0, 977.0), None),  # slower, and by about the threshold
        ((1000.0, 1060.0, 940.0), None),
    ],
)
def test_a_slowdown_beyond_the_threshold(
    get_record: GetRecord, rates: tuple[float, ...], expected: bool | None
) -> None:
    ours = [set_rate(get_record(f"c0000{n}"), rate, 1e-4) for n, rate in enumerate((1000.0, 1001.0, 999.0))]
    theirs = [set_rate(get_record(f"c0000{n}"), rate, 1e-4) for n, rate in enumerate(rates)]
    assert slowdown(compare(ours, theirs), 0.02) is expected
    assert slowdown(compare(ours[0], set_rate(theirs[0], 500.0, None)), 0.02) is None


def test_a_run_with_a_failed_check_answers_no_question_of_a_slowdown(get_record: GetRecord) -> None:
    """A run that stopped training is fast; a script must not take it for good."""
    theirs = get_record("a00200")
    assert slowdown(compare(get_record("a00203"), theirs), 0.02) is False
    theirs["checks"].append({"name": "still-training", "level": "fail", "message": "the weights stood still"})
    found = compare(get_record("a00203"), theirs)
    assert slowdown(found, 0.02) is None
    said = slowdown_sentence(None, 0.02, found)
    assert said == f"nothing can be concluded: {theirs['id']} failed its check still-training"
    assert sentences(found)[0].endswith(f"as fast as A, but {theirs['id']} failed its check still-training.")
    theirs["checks"][-1] = {"name": "energy-limit", "level": "fail", "message": "a sensor is wrong"}
    assert compare(get_record("a00203"), theirs).verdict == "faster"  # which says nothing against the rate


def test_one_run_whose_interval_is_not_trusted_concludes_nothing_and_repeats_do(get_record: GetRecord) -> None:
    few = {"name": "blocks", "level": "warn", "message": "5 effectively independent blocks of steps"}
    ours = [get_record(f"c0000{number}") for number in range(3)]
    theirs = get_record("d00001")
    for record in ours:
        record["checks"] = [few]
    assert compare(ours[0], theirs).verdict == "no interval"
    assert "too few independent blocks" in sentences(compare(ours[0], theirs))[0]
    assert compare(ours, theirs).verdict == "faster"


def test_parts_of_the_software_that_differ_are_named(get_record: GetRecord) -> None:
    theirs = get_record("c00001")
    theirs["facts"]["software"] |= {"prony_node_source": "f00d", "versions": {"timm": "1.0.1"}, "boot_time": "x"}
    found = compare(get_record("c00000"), theirs)
    assert found.question == "software"
    assert "Software that differs: prony_node_source, boot_time, versions.timm." in sentences(found)


def test_repeats_use_the_interval_between_runs(get_record: GetRecord) -> None:
    ours = [get_record(end) for end in ("c00000", "c00001", "c00002")]
    theirs = [set_rate(get_record(end), rate) for end, rate in (("c00000", 7000.0), ("c00001", 7010.0))]
    found = compare(ours, theirs)
    assert (found.a.interval, found.b.interval) == ("between 3 runs", "between 2 runs")
    assert found.a.low is not None
    assert found.a.low < 6843.0  # wider than any run's own
    assert "variation between 3 and 2 runs" in sentences(found)[0]


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
    said = sentences(compare(ours, theirs))
    assert said[0].startswith("B is 0.50x as fast as A (95 % CI 0.48 to 0.52; ")
    assert said[1] == "B takes 100.0 % (91.2 % to 109.2 %) more time than A."


runs_of_a_side = st.lists(st.floats(0.9, 1.1), min_size=1, max_size=5)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs_of_a_side, runs_of_a_side, st.floats(0.001, 0.01))
def test_the_verdict_in_json_is_what_the_sentences_say(
    get_record: GetRecord, ours: list[float], theirs: list[float], half: float
) -> None:
    """A script that reads the verdict and a person who reads the sentence, as printed, act alike."""
    sides = [[set_rate(get_record("c00000"), 1000.0 * rate, half) for rate in side] for side in (ours, theirs)]
    found = compare(*sides)
    document, (first, second, *_) = found.to_json(), sentences(found)
    printed = re.search(r"B is ([0-9.]+)x as fast as A \(95 % CI ([0-9.]+) to ([0-9.]+)", first)
    assert printed
    ratio, low, high = map(float, printed.groups())
    assert low <= ratio <= high
    shown = FASTER if low > 1.0 else SLOWER if high < 1.0 else SAME
    assert document["verdict"] == shown
    assert first.startswith("No difference shown") == (shown == SAME)
    assert second.startswith({FASTER: "B saves", SLOWER: "B takes", SAME: "B may take"}[shown])
    beyond = slowdown(found, 0.0)
    assert beyond is {SLOWER: True, SAME: None, FASTER: False}[shown]


def test_comparison_as_json_names_its_schema(get_record: GetRecord) -> None:
    document = compare(get_record("a00200"), get_record("a01004")).to_json()
    assert document["schema"] == "prony.comparison/1"
    assert document["confounded"] is True
    assert document["settings"][0] == {"name": "batch_size", "a": 32, "b": 256}
