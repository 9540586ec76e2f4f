"""If these fail, a figure in doubt is printed as if it were good, or a good one is doubted."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from made_parts import GPU, made_figure, made_part, made_sensor

from prony_node.contract.record import LEVELS, Check
from prony_node.contract.typed import encode
from prony_node.power.figures import (
    LOWER_BOUND,
    MEASURED,
    MeasuredNode,
    PartEnergy,
    covered,
    node_checks,
    part_checks,
    quality_lines,
    recorded_node,
    recorded_part,
    said,
)
from prony_node.power.recording import Recording
from prony_node.power.window import Trend

COUNTER = made_sensor(GPU, "counter", uncertainty=0.05, uncertainty_source="a study")
POWER = made_sensor(GPU, "instantaneous", name="power")


def gpu(sensor: Any = COUNTER, *, off: float | None = 0.0, beside_j: float = 0.0, **figure: Any) -> PartEnergy:
    """A part at 300 W for 10 s; the other way is off by this share."""
    found = made_figure(sensor, 300.0, **figure)
    energy_j = 3000.0 * (1.0 + (off or 0.0))
    beside = None if off is None else made_figure(POWER, 300.0, energy_j=energy_j, uncertainty_j=beside_j)
    return made_part(
        sensor, 300.0, figure=found, beside=beside, thirds_w=(300.0, 301.0, 299.0), trend=Trend(0.001, 0.004)
    )


def check(part: PartEnergy, name: str, limit_w: float | None = None) -> tuple[str, str]:
    (found,) = [one for one in part_checks(part, limit_w) if one.name == name]
    return found.level, found.message


def test_a_good_figure_passes_everything() -> None:
    checks = part_checks(gpu(), 700.0)
    assert [one.name for one in checks] == [
        "energy-window", "energy-agreement", "energy-gap", "energy-drift", "energy-limit",
    ]  # fmt: skip
    assert {one.level for one in checks} == {"pass"}


def test_without_a_figure_there_is_one_check_that_says_why() -> None:
    (found,) = part_checks(made_part(COUNTER, None), 700.0)
    assert (found.name, found.level) == ("energy", "unknown")
    assert found.message == f"Made {GPU}: no energy figure: it does not answer"


def test_the_window_is_sure_enough_up_to_one_and_a_half_percent() -> None:
    expected = "± 1.5 % (95 %, calibration apart) from 100 ticks of 100 ms over 10.0 s"
    assert check(gpu(uncertainty_j=45.0), "energy-window") == ("pass", expected)
    level, text = check(gpu(uncertainty_j=60.0), "energy-window")
    assert level == "warn"
    assert text.startswith("± 2 %")
    assert "100 readings of 100 ms" in check(gpu(POWER), "energy-window")[1]


@pytest.mark.parametrize(
    ("off", "level"),
    [(0.019, "pass"), (-0.019, "pass"), (0.03, "warn"), (-0.049, "warn"), (0.051, "fail"), (-0.3, "fail")],
)
def test_two_ways_agree_within_two_percent_and_are_doubted_up_to_five(off: float, level: str) -> None:
    found, text = check(gpu(off=off), "energy-agreement")
    assert found == level
    assert text.startswith(f"made.power integrated is {100 * off:+.2g} % off made.counter (their uncertainties allow ")


def test_what_their_uncertainties_allow_is_no_disagreement() -> None:
    assert check(gpu(off=0.06, beside_j=240.0), "energy-agreement")[0] == "pass"
    assert check(gpu(off=0.09, beside_j=240.0), "energy-agreement")[0] == "fail"


def test_one_way_alone_is_unknown() -> None:
    assert check(gpu(off=None), "energy-agreement") == ("unknown", "there is no second way to measure it here")


def test_a_gap_matters_to_an_integral_and_not_to_a_counter() -> None:
    text = "the longest time without a reading was 1500 ms"
    assert check(gpu(POWER, largest_gap_s=1.5), "energy-gap") == ("warn", text)
    assert check(gpu(COUNTER, largest_gap_s=1.5), "energy-gap") == ("pass", text)
    assert check(gpu(POWER, largest_gap_s=0.9), "energy-gap")[0] == "pass"
    assert check(gpu(POWER, largest_gap_s=0.4, period_s=0.01), "energy-gap")[0] == "pass", "half a second is nothing"


@pytest.mark.parametrize(
    ("change", "half_width", "level"),
    [
        (0.015, 0.01, "pass"),
        (0.03, 0.015, "pass"),
        (0.03, 0.009, "warn"),
        (-0.06, 0.03, "warn"),
        (0.03, 0.05, "unknown"),
    ],
)
def test_a_drift_must_be_shown_to_be_over_two_percent(change: float, half_width: float, level: str) -> None:
    part = made_part(COUNTER, 300.0, thirds_w=(290.0, 300.0, 310.0), trend=Trend(change, half_width))
    found, text = check(part, "energy-drift")
    assert found == level
    assert text.endswith("mean power of the thirds: 290, 300, 310 W")


def test_too_few_readings_show_no_drift() -> None:
    short = check(made_part(COUNTER, 300.0), "energy-drift")
    assert short == ("unknown", "the window has too few readings to show a drift")


def test_no_mean_is_above_the_limit() -> None:
    assert check(gpu(), "energy-limit", 300.0) == ("pass", "300 W mean under a limit of 300 W")
    assert check(gpu(), "energy-limit", 290.0)[0] == "pass", "within what a sensor may be off"
    assert check(gpu(), "energy-limit", 280.0)[0] == "fail"
    assert "energy-limit" not in [one.name for one in part_checks(gpu(), None)]


def test_what_happened_to_a_sensor_is_a_warning_with_three_notes_at_most() -> None:
    part = made_part(COUNTER, 300.0, notes=tuple(f"made.power: {n}" for n in "abcd"))
    assert check(part, "energy-sensor") == ("warn", "made.power: a; made.power: b; made.power: c")


def node(power_w: float, how: str = MEASURED) -> MeasuredNode:
    return MeasuredNode(how, 10.0 * power_w, 20.0, 10.0, power_w, ["node"])


def test_a_node_uses_as_much_as_its_devices() -> None:
    whole, package = made_sensor("node", scope="node", contains=(GPU,)), made_sensor("package-0", scope="package")
    sensors = [whole, COUNTER, package]
    parts = [made_part(whole, 500.0), made_part(COUNTER, 300.0), made_part(package, 100.0)]
    (good,) = node_checks(node(500.0), parts, sensors)
    assert good == Check("energy-node", "pass", "the node's 500 W against 400 W of its devices")
    assert node_checks(node(385.0), parts, sensors)[0].level == "pass", "sensors are a few percent off"
    assert node_checks(node(370.0), parts, sensors)[0].level == "fail"
    assert node_checks(node(100.0, LOWER_BOUND), parts, sensors) == []
    assert node_checks(None, parts, sensors) == []


def test_what_lies_inside_another_part_is_not_counted_against_the_node_twice() -> None:
    module = made_sensor("module-0", scope="module", contains=("gpus-of-module-0",))
    sensors = [module, COUNTER]
    parts = [made_part(module, 700.0), made_part(COUNTER, 500.0)]
    assert "700 W of its devices" in node_checks(node(800.0), parts, sensors)[0].message
    lost = [made_part(module, None), parts[1]]
    assert "500 W of its devices" in node_checks(node(800.0), lost, sensors)[0].message


def test_every_device_that_took_part_is_measured() -> None:
    parts = [made_part(COUNTER, 300.0), made_part(made_sensor("other"), None)]
    assert covered([GPU], parts) == Check("energy-devices", "pass", "1 of 1 devices measured")
    missed = covered([GPU, "other"], parts)
    assert (missed.level, missed.message) == ("warn", "1 of 2 devices measured; not other")
    assert covered([], parts).level == "unknown"


def test_lines_for_a_person_mark_what_is_not_good() -> None:
    part = gpu(off=0.03)
    lines = quality_lines(part, part_checks(part, None))
    assert lines[0] == "source: made.counter (counter, evidence: documented format); calibration ± 5 % (a study)"
    assert lines[1:3] == ["scope: gpu", "window: 10.00 s"]
    assert lines[3].startswith("ticks: ± ")
    assert not lines[3].endswith("]")
    assert lines[4].startswith("agreement: made.power integrated is +3 % off")
    assert lines[4].endswith("[warn]")
    assert quality_lines(made_part(COUNTER, None), []) == ["no figure: it does not answer"]
    plain = gpu(POWER)
    assert quality_lines(plain, part_checks(plain, None))[0].endswith("calibration unknown")
    span = Check("energy-span", "pass", "covers 2.0 of 2.1 s")
    assert not any(line.startswith("window: 10") for line in quality_lines(part, [span]))
    assert said(span) == "window: covers 2.0 of 2.1 s"
    assert said(Check("energy-foreign", "unknown", "x")) == "foreign processes: x [unknown]"


def test_a_part_in_the_record_has_everything_that_it_rests_on() -> None:
    document = encode(recorded_part(gpu(off=0.01), (80.0, "made.power")))
    assert (document["energy_j"], document["power_w"], document["window_s"]) == (3000.0, 300.0, [2.0, 12.0])
    assert document["energy_j"] / (document["window_s"][1] - document["window_s"][0]) == document["power_w"]
    assert (document["idle_power_w"], document["idle_source"]) == (80.0, "made.power")
    assert document["beside"]["difference"] == pytest.approx(0.01)
    assert (document["method"], document["kind"], document["calibration"]) == ("counter", "counter", 0.05)
    without = encode(recorded_part(made_part(COUNTER, None), (None, "it was not idle")))
    assert (without["energy_j"], without["reason"]) == (None, "it does not answer")
    assert (without["idle_power_w"], without["idle_reason"]) == (None, "it was not idle")
    json.dumps([document, without], allow_nan=False)


def test_a_node_in_the_record_says_how_or_why_not() -> None:
    assert encode(recorded_node(node(500.0), Recording()))["how"] == MEASURED
    assert encode(recorded_node(None, Recording())) == {"energy_j": None, "reason": "no sensor"}
    reasons = Recording(reasons={"rapl": "only root may read it"})
    assert (
        encode(recorded_node(None, reasons))["reason"]
        == "nothing of the node was measured (rapl: only root may read it)"
    )


def test_no_text_claims_a_procedure_of_others() -> None:
    """The figures follow our own rules; nothing may read as if it followed those of a list or a benchmark."""
    found: list[str] = []
    for sensor, off, gap_s in itertools.product((COUNTER, POWER), (None, 0.0, 0.03, 0.1), (0.05, 3.0)):
        part = gpu(sensor, off=off, largest_gap_s=gap_s)
        checks = part_checks(part, 200.0) + part_checks(made_part(sensor, None), None)
        assert all(one.level in LEVELS for one in checks)
        found += [one.message for one in checks] + quality_lines(part, checks)
    found += [covered([GPU], []).message, json.dumps(encode(recorded_node(node(5.0), Recording())))]
    text = " ".join(found).lower()
    assert "mlperf" not in text
    assert "green500" not in text
