"""Each claim of the shipped studies holds and does not hold where made-up records say so; every other verdict once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from documents import of_documents

from prony.analysis.claims import (
    FAILS,
    HOLDS,
    NO_INTERVAL,
    SAME_RUNS,
    UNDECIDED,
    UNTESTED,
    Judged,
    concerns,
    judge,
)
from prony.analysis.published_tables import NOT_IN_SIZE, NOT_RUN, TINY_MODEL, StudyResults
from prony.catalog import ACCURACY, FIRST_EPOCH, PER_WH, POWER, TIME, ClaimSpec, Ratio
from prony.report.published import claim_line, claim_lines
from prony.study.study_file import load_study
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import all_devices
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

judge = of_documents(judge)

NAMES = ("caraml", "hurt-nrp", "nasari-pearc22", "olivia-gh200")
REPEATS = (0.9997, 1.0, 1.0003)  # three runs that hardly differ
ANY_DEVICE = "NVIDIA H200"


@cache
def trials_of(study: str, size: str = "full") -> tuple[Trial, ...]:
    return tuple(one.trial for one in load_study(study, size, (), find_workload).planned())


CLAIMS = [(name, claim) for name in NAMES for claim in load_study(name, None, (), find_workload).claims]


def claim_of(study: str, says: str) -> ClaimSpec:
    (found,) = [claim for name, claim in CLAIMS if name == study and claim.says.startswith(says)]
    return found


def trial_of(study: str, claim: ClaimSpec, cell: str) -> Trial:
    (found,) = [one for one in trials_of(study) if concerns(replace(claim, cells={cell: claim.cells[cell]}), [one])]
    return found


def record_of(trial: Trial, value: float, metric: str, device: str, number: int, machine: str) -> dict[str, Any]:
    devices = all_devices(trial.settings)
    rate = {ACCURACY: 100.0, PER_WH: 100.0, POWER: 100.0, FIRST_EPOCH: 100.0, TIME: 1e4 / value}.get(metric, value)
    rate *= devices if metric == "rate_per_device" else 1
    metrics: dict[str, Any] = {"throughput": {"value": rate, "low": rate * 0.999, "high": rate * 1.001, "unit": "u/s"}}
    learning: dict[str, Any] = {}
    if metric == ACCURACY:
        metrics["quality"] = {"value": value, "unit": "accuracy"}
        learning = {"curve": [{"epoch": 9, "accuracy": 0.1}, {"epoch": 10, "accuracy": value}]}
    if metric == PER_WH:
        metrics["samples_per_wh"] = {"value": value}
    if metric == POWER:
        metrics["power"] = {"value": value * devices}
    if metric == FIRST_EPOCH:  # an epoch of this many images takes 1 / value times as long from the first step on
        metrics["cold_start"] = {"value": 1281167 / rate * (1 / value - 1)}
    return {
        "id": f"{trial.hash}-{machine}-{number}", "status": "ok", "unit": "images", "checks": [],
        "started": f"2026-11-15T10:0{number}:00+00:00", "fingerprint": {"machine": machine, "software": "s"},
        "trial": {"workload": trial.workload, "settings": trial.settings, "effective": dict(trial.settings)},
        "metrics": metrics, "learning": learning, "facts": {"devices": [{"name": device}]}, "phases": {},
        "work": {},
    }  # fmt: skip


def judged_with(
    study: str, claim: ClaimSpec, values: Mapping[str, float], repeats: tuple[float, ...] = REPEATS
) -> Judged:
    """The claim with runs of its cells that have these values, each device on a machine of its own."""
    records: dict[str, list[dict[str, Any]]] = {}
    for name, value in values.items():
        trial, device = trial_of(study, claim, name), claim.cells[name].on or ANY_DEVICE
        found = records.setdefault(trial.hash, [])
        for number, factor in enumerate(repeats):
            found.append(record_of(trial, value * factor, claim.metric, device, number, f"machine of {device}"))
    (judged,) = judge([claim], StudyResults(trials_of(study), records), records)
    return judged


def ratio_where(claim: ClaimSpec, ratio: Ratio, holds: bool) -> float:
    """A ratio of two cells well inside the bounds, or well outside."""
    steps = [math.exp(step / 1000) for step in range(-5000, 5001)]
    found = [step for step in steps if claim.holds(ratio.of(step)) == holds]
    return found[len(found) // (2 if holds else 4)]


def values_for(claim: ClaimSpec, wanted: Mapping[str, float]) -> dict[str, float]:
    """Values of the cells with these ratios, by the text of each."""
    values: dict[str, float] = {}
    left = {pair: wanted[ratio.text] for ratio in claim.values for pair in ratio.pairs[:1]}
    left |= {pair: 1.0 for ratio in claim.values for pair in ratio.pairs[1:]}  # the first of two has it all
    while left:
        over, under = next((pair for pair in left if set(pair) & set(values)), next(iter(left)))
        value = left.pop((over, under))
        if not under:
            values[over] = value
        elif over in values:
            values[under] = values[over] / value
        else:
            values.setdefault(under, 0.4 if claim.metric in (ACCURACY, FIRST_EPOCH) else 1000.0)
            values[over] = values[under] * value
    return values


@pytest.mark.parametrize(("study", "claim"), CLAIMS, ids=lambda one: one.says[:60] if hasattr(one, "says") else one)
def test_a_claim_holds_where_the_runs_say_so_and_does_not_where_one_ratio_says_otherwise(
    study: str, claim: ClaimSpec
) -> None:
    inside = {ratio.text: ratio_where(claim, ratio, holds=True) for ratio in claim.values}
    held = judged_with(study, claim, values_for(claim, inside))
    assert (held.verdict, held.missing) == (HOLDS, ())
    assert [one.value for one in held.values] == pytest.approx(
        [ratio.of(inside[ratio.text]) for ratio in claim.values], rel=1e-3
    )
    last = claim.values[-1]
    failed = judged_with(study, claim, values_for(claim, inside | {last.text: ratio_where(claim, last, holds=False)}))
    assert failed.verdict == FAILS
    assert "95 % CI" in claim_line(failed)


@pytest.mark.parametrize(("study", "claim"), CLAIMS, ids=lambda one: one.says[:60] if hasattr(one, "says") else one)
def test_without_runs_a_claim_cannot_be_tested_and_says_what_is_missing(study: str, claim: ClaimSpec) -> None:
    judged = judged_with(study, claim, {})
    assert judged.verdict == UNTESTED
    devices = {cell.on for cell in claim.cells.values()} - {""}
    said = "; ".join(judged.missing)
    assert all(device in said for device in devices) or NOT_IN_SIZE in said
    assert devices or NOT_RUN in said


def test_every_cell_is_one_trial_but_for_those_that_are_listed() -> None:
    without = set()
    for study, claim in CLAIMS:
        for name, cell in claim.cells.items():
            count = sum(concerns(replace(claim, cells={name: cell}), [one]) for one in trials_of(study))
            assert count <= 1, f"{study}: {name} is {count} trials"
            without |= {claim.says} if not count else set()
    assert not list(without)
    assert len(CLAIMS) >= 76


def test_one_trial_for_both_sides_decides_nothing() -> None:
    claim = claim_of("olivia-gh200", "More CPUs do not help")
    claim = replace(claim, cells={name: claim.cells["aggressive"] for name in claim.cells})
    judged = judged_with("olivia-gh200", claim, {"aggressive": 1000.0})
    assert (judged.verdict, judged.missing) == (UNTESTED, (f"no value: {SAME_RUNS}",))


def test_an_interval_that_includes_the_bound_decides_nothing() -> None:
    claim = claim_of("olivia-gh200", "FP16 is 2.5 % faster")
    judged = judged_with("olivia-gh200", claim, {"fp16": 1001.0, "workers_8": 1000.0}, repeats=(1.0,))
    assert judged.verdict == UNDECIDED
    (value,) = judged.values
    assert value.low is not None
    assert value.high is not None
    assert value.low < 1.0 < value.high


def test_a_metric_without_an_interval_decides_nothing() -> None:
    claim = claim_of("olivia-gh200", "FP16 has a better accuracy")
    judged = judged_with("olivia-gh200", claim, {"fp16": 0.6, "workers_8": 0.5}, repeats=(1.0,))
    assert (judged.verdict, judged.missing) == (UNDECIDED, (f"no interval: {NO_INTERVAL}",))
    assert judged.values[0].value == pytest.approx(1.2)


@pytest.mark.parametrize(("metric", "words"), [("quality_at_epochs", {"report_at_epochs": 10}), ("quality", {})])
def test_an_accuracy_of_one_run_has_the_interval_of_its_test_split(metric: str, words: dict[str, int]) -> None:
    claim = claim_of("olivia-gh200", "FP16 has a better accuracy")
    records = {}
    for name, value in (("fp16", 0.53), ("workers_8", 0.50)):
        trial = trial_of("olivia-gh200", claim, name)
        record = record_of(trial, value, ACCURACY, ANY_DEVICE, 0, "here")
        record["trial"]["effective"] |= words
        record["metrics"][metric] = {"value": value, "unit": "accuracy", "low": value - 0.01, "high": value + 0.01}
        if words:  # of a longer run, whose last epoch has another accuracy and interval
            record["learning"]["curve"].append({"epoch": 100, "accuracy": 0.9})
            record["metrics"]["quality"] = {"value": 0.9, "unit": "accuracy", "low": 0.1, "high": 0.99}
        records[trial.hash] = [record]
    (judged,) = judge([claim], StudyResults(trials_of("olivia-gh200"), records))
    (ratio,) = judged.values
    assert (judged.verdict, ratio.value) == (HOLDS, pytest.approx(1.06))
    assert ratio.low == pytest.approx(1.06 * math.exp(-math.hypot(0.01 / 0.53, 0.01 / 0.50)), rel=1e-3)


@pytest.mark.parametrize(("rate", "said"), [(1310.0, "outside"), (1480.0, "inside")])
def test_a_verdict_says_that_it_is_on_the_direction_and_not_on_the_published_number(rate: float, said: str) -> None:
    claim = claim_of("hurt-nrp", "One GH200 takes 32.3 %")
    cells = {"resnet50_cifar100_gh200": rate, "resnet50_cifar100_a100": 1000.0}
    judged = judged_with("hurt-nrp", claim, cells)
    line = claim_line(judged)
    assert f"Holds here (above 1): ours {rate / 1000:.2f} (95 % CI " in line
    assert line.endswith(f" for resnet50_cifar100_gh200 / resnet50_cifar100_a100; published 1.48, {said} this CI.")
    assert judged.to_json()["tested"] == "above 1"


def test_a_claim_on_two_ratios_has_the_width_of_both_and_of_a_shared_cell_twice() -> None:
    claim = claim_of("hurt-nrp", "With ResNet-50 the gap")
    ends = {name: 1000.0 for name in claim.cells}
    (apart,) = judged_with("hurt-nrp", claim, ends).values
    near = claim_of("nasari-pearc22", "In ResNet-50 in TensorFlow an IPU")
    shared = judged_with("nasari-pearc22", near, {name: 1000.0 for name in near.cells}).values[0]
    assert apart.low is not None
    assert shared.low is not None
    assert apart.value == shared.value == pytest.approx(1.0)
    assert math.log(shared.low) == pytest.approx(math.sqrt(2) * math.log(apart.low), rel=0.01)


def test_a_first_epoch_is_compared_with_the_following_of_the_same_run() -> None:
    claim = claim_of("nasari-pearc22", "On one device the first epoch")
    judged = judged_with("nasari-pearc22", claim, {"torch_1": 0.6})
    assert (judged.verdict, judged.values[0].value) == (HOLDS, pytest.approx(0.6))
    assert judged.own[0].value == pytest.approx(1113 / 1862.9)
    once = judged_with("nasari-pearc22", claim, {"torch_1": 0.6}, repeats=(1.0,))
    assert (once.verdict, once.missing) == (UNDECIDED, (f"no interval: {NO_INTERVAL}",))


def test_an_accuracy_needs_a_data_set() -> None:
    claim = claim_of("olivia-gh200", "FP16 has a better accuracy")
    trials = [trial_of("olivia-gh200", claim, name) for name in ("fp16", "workers_8")]
    records = {one.hash: [record_of(one, 1.0, "rate", ANY_DEVICE, 0, "m")] for one in trials}
    (judged,) = judge([claim], StudyResults(trials, records))
    assert judged.verdict == UNTESTED
    assert judged.missing == (
        "no value: nothing was learned from a data set: give it, as data=PATH epochs=100 report_at_epochs=10",
    )


def power_ratio(repeats: int, devices: tuple[str, str], failing: str = "") -> Judged:
    """Of 600 over 400 W, in runs on these devices."""
    claim = claim_of("caraml", "An H100 SXM takes 1.6x")
    records: dict[str, list[dict[str, Any]]] = {}
    for (name, value), uuid in zip((("gpt_sxm_16", 600.0), ("gpt_pcie_16", 400.0)), devices, strict=True):
        trial = trial_of("caraml", claim, name)
        for number in range(repeats):
            record = record_of(trial, value + number, POWER, f"NVIDIA {claim.cells[name].on}", number, name)
            record["metrics"]["power"] |= {"low": 4 * value * 0.98, "high": 4 * value * 1.02}
            record["facts"]["devices"][0]["uuid"] = uuid
            record["checks"] = [{"name": failing, "level": "fail"}] if failing else []
            records.setdefault(trial.hash, []).append(record)
    cells = {name: claim.cells[name] for name in ("gpt_sxm_16", "gpt_pcie_16")}
    (judged,) = judge(
        [replace(claim, values=claim.values[:1], cells=cells)], StudyResults(trials_of("caraml"), {}), records
    )
    return judged


def test_the_energy_of_one_run_decides_nothing_and_that_of_several_counts_the_sensors() -> None:
    assert power_ratio(1, ("a", "b")).missing == (f"no interval: {NO_INTERVAL}",)
    widths = []
    for devices in (("a", "a"), ("a", "b")):
        judged = power_ratio(3, devices)
        (value,) = judged.values
        assert (judged.verdict, value.value) == (HOLDS, pytest.approx(1.5, rel=0.01))
        assert value.low is not None
        assert value.high is not None
        widths.append(math.log(value.high / value.low) / 2)
    assert widths[1] == pytest.approx(math.hypot(widths[0], math.sqrt(2) * 0.05))


def test_energy_whose_checks_fail_tests_nothing() -> None:
    judged = power_ratio(3, ("a", "a"), "energy-agreement")
    assert (judged.verdict, judged.missing) == (UNTESTED, ("no value: failed check: energy-agreement",))


def test_an_interval_is_that_of_the_whole_expression_and_not_of_its_ends() -> None:
    claim = claim_of("olivia-gh200", "FP16 is 2.5 % faster")
    (ratio,) = claim.values
    bent = replace(claim, values=(replace(ratio, of=lambda value: max(value, 1 / value)),), above=1.02, below=None)
    judged = judged_with("olivia-gh200", bent, {"fp16": 1001.0, "workers_8": 1000.0}, repeats=(1.0,))
    assert judged.verdict == UNDECIDED, "1.00 lies inside, although both ends are above the bound"


def test_a_ratio_for_which_an_expression_has_no_value_cannot_be_tested() -> None:
    def divide(value: float) -> float:
        raise RequestError("divides by zero")

    claim = claim_of("olivia-gh200", "FP16 is 2.5 % faster")
    broken = replace(claim, values=(replace(claim.values[0], of=divide),))
    judged = judged_with("olivia-gh200", broken, {"fp16": 1001.0, "workers_8": 1000.0})
    assert (judged.verdict, judged.missing) == (UNTESTED, ("no value: divides by zero",))


def test_a_claim_without_a_device_takes_one_machine_and_one_with_devices_any() -> None:
    named = claim_of("hurt-nrp", "One GH200 takes 32.3 %")
    good = judged_with("hurt-nrp", named, {"resnet50_cifar100_gh200": 1500.0, "resnet50_cifar100_a100": 1000.0})
    assert good.verdict == HOLDS, "runs of two machines"
    plain = claim_of("olivia-gh200", "32 workers, BF16, TF32 and prefetching make one GPU")
    baseline, optimised = (trial_of("olivia-gh200", plain, name) for name in ("baseline", "optimised"))
    records = {
        baseline.hash: [record_of(baseline, 100.0, "rate", ANY_DEVICE, 0, "here")],
        optimised.hash: [record_of(optimised, 200.0, "rate", ANY_DEVICE, 1, "there")],
    }
    (judged,) = judge([plain], StudyResults([baseline, optimised], records))
    assert judged.verdict == UNTESTED
    assert judged.missing == ("no value of baseline: no run of it on the machine of the newest run",)


def test_a_device_is_known_by_the_words_of_its_name() -> None:
    cell = next(iter(claim_of("hurt-nrp", "One GH200 takes 32.3 %").cells.values()))
    assert replace(cell, on="A100 80GB").is_on("NVIDIA A100-SXM4-80GB")
    assert replace(cell, on="A100-SXM").is_on("NVIDIA A100-SXM4-40GB")
    assert not replace(cell, on="H200").is_on("NVIDIA GH200 480GB")
    assert replace(cell, on="").is_on("anything")


def test_a_tiny_model_tests_nothing() -> None:
    claim = claim_of("olivia-gh200", "32 workers, BF16, TF32 and prefetching make one GPU")
    trials, records = [], {}
    for name in claim.cells:
        whole = trial_of("olivia-gh200", claim, name)
        trial = Trial(whole.workload, {**whole.settings, "size": "tiny"})
        trials.append(trial)
        records[trial.hash] = [record_of(trial, 10.0, "rate", "a CPU", 0, "here")]
    (judged,) = judge([claim], StudyResults(trials, records))
    assert (judged.verdict, judged.missing) == (UNTESTED, (f"no value of baseline, optimised: {TINY_MODEL}",))


def test_a_failed_check_of_a_run_decides_nothing() -> None:
    claim = claim_of("olivia-gh200", "32 workers, BF16, TF32 and prefetching make one GPU")
    trials = {name: trial_of("olivia-gh200", claim, name) for name in claim.cells}
    records = {one.hash: [record_of(one, 100.0, "rate", ANY_DEVICE, 0, "here")] for one in trials.values()}
    records[trials["optimised"].hash][0]["status"] = "failed"
    records[trials["optimised"].hash][0]["failure"] = {"kind": "out-of-memory"}
    (judged,) = judge([claim], StudyResults(list(trials.values()), records))
    assert (judged.verdict, judged.missing) == (UNTESTED, ("no value of optimised: out-of-memory",))


# What the publications' own figures say against their text.
CONTRADICTED = {
    "hurt-nrp": {
        "On every classifier and data set one GH200 takes 35 to 55 %": "0.323 for 1 - resnet50_cifar100_gh200",
        "On every classifier and data set one GH200 takes 20 to 50 %": "0.543 for 1 - vit_h_cifar100_gh200",
        "On every classifier and data set four A100 take 20 to 50 %": "0.549 for 1 - swin_t_food101_four_a100",
    },
    "nasari-pearc22": {"From 1 to 16 replicas the autoencoder": "0.456 for coder_x16"},
    "olivia-gh200": {
        "Scaling from one to four GPUs is near-linear": "3.55 for node / (4 * baseline)",
        "On four GPUs with BF16, 8 workers per GPU are faster": "0.953 for workers_8 / workers_4",
        "FP16 has a better accuracy": "0.98 for fp16 / workers_8",
        "8 workers and FP16 are the fastest": "0.976 for fp16 / workers_4",
        "8 workers and FP16 have the best accuracy": "0.98 for fp16 / workers_8",
    },
    "caraml": {
        "JURECA's GH200, alone, has 1.2x": "0.905 for gpt_jrdc_16 / gpt_jedi_16",
        "JURECA's GH200 has 2.45x": "it says 2.45, and its figures give 1.73 to 2.15",
        "The lead of an H100 PCIe": "1.34 for gpt_pcie_64 / gpt_jedi_64",
        "On several IPUs the rate of ResNet-50 grows": "0.784 for ipus_2_64 / ipus_2_16",
    },
}


@pytest.mark.parametrize("study", NAMES)
def test_claims_are_held_to_the_figures_of_their_own_publication(study: str) -> None:
    judged = judge([claim for name, claim in CLAIMS if name == study], StudyResults(trials_of(study), {}))
    found = {one.claim.says: one.contradicted for one in judged if one.contradicted}
    expected = CONTRADICTED[study]
    assert len(found) == len(expected)
    for says, why in expected.items():
        (said,) = [text for claim, text in found.items() if claim.startswith(says)]
        assert why in said


def test_a_claim_may_be_contradicted_there_and_hold_here_and_both_are_said() -> None:
    claim = claim_of("olivia-gh200", "FP16 has a better accuracy")
    judged = judged_with("olivia-gh200", claim, {"fp16": 0.6, "workers_8": 0.5})
    assert judged.verdict == HOLDS
    line = claim_line(judged)
    assert "Holds here (above 1): ours 1.20 (95 % CI 1.20 to 1.20) for fp16 / workers_8." in line
    assert line.endswith("Contradicted by the publication's own numbers: its figures give 0.98 for fp16 / workers_8.")
    lines = claim_lines([judged])
    counts = "1 claim; holds here: 1; contradicted by the publication's own numbers: 1."
    assert f"{counts} A verdict is on the bounds in brackets, not on the published number." in lines
    assert judged.to_json()["verdict"] == HOLDS
    assert judged.to_json()["published_values"][0]["value"] == pytest.approx(0.5201 / 0.5308)


def test_no_claims_no_lines() -> None:
    assert claim_lines([]) == []
