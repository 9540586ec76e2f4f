"""If these fail, a person reads of another energy than the one in the record, or not where it comes from."""

from __future__ import annotations

from typing import Any

from documents import of_documents

from prony.analysis.summary import energy_lines

energy_lines = of_documents(energy_lines)

PART: dict[str, Any] = {
    "part": "GPU-1", "scope": "gpu", "label": "NVIDIA H200", "idle_power_w": 76.4, "idle_source": "nvidia.power GPU-1",
    "energy_j": 7200.0, "uncertainty_j": 57.6, "window_s": [100.0, 110.0], "power_w": 720.0, "power_peak_w": 1734.6,
    "peak_sensor": "nvidia.power GPU-1", "method": "counter", "sensor": "nvidia.energy GPU-1", "kind": "counter",
    "evidence": "hardware", "calibration": 0.05, "readings": 100, "period_s": 0.1, "largest_gap_s": 0.07,
    "beside": None, "thirds_w": [],
}  # fmt: skip


def line_of(**changes: Any) -> str:
    ((_, text),) = energy_lines({"energy": {"parts": [{**PART, **changes}]}})
    return text


def test_a_part_says_how_much_how_sure_and_by_what() -> None:
    (line,) = energy_lines({"energy": {"parts": [PART], "node": {"energy_j": None, "reason": "no sensor"}}})
    assert line == (
        "NVIDIA H200",
        "7,200 J (2 Wh) ± 0.8 % in 10.00 s, 720 W mean, 1,735 W peak, 76 W idle before the run; nvidia.energy"
        " (counter, scope gpu, evidence: hardware), 100 ticks of 100 ms, calibration ± 5 %",
    )


def test_what_is_not_known_is_left_out() -> None:
    text = line_of(power_peak_w=None, idle_power_w=None, calibration=None)
    assert "peak" not in text
    assert "idle" not in text
    assert "calibration" not in text


def test_an_idle_power_of_zero_is_a_power() -> None:
    assert ", 0 W idle before the run" in line_of(idle_power_w=0.0)


def test_power_readings_are_not_ticks() -> None:
    assert "power.now (integral, scope gpu, evidence: hardware), 100 readings of 100 ms" in line_of(
        method="integral", sensor="power.now GPU-1"
    )


def test_a_part_without_a_figure_says_why() -> None:
    part = {"part": "GPU-1", "scope": "gpu", "label": "NVIDIA H200", "energy_j": None, "reason": "it was lost"}
    assert energy_lines({"energy": {"parts": [{**part, "idle_power_w": None}]}}) == [
        ("NVIDIA H200", "no figure: it was lost")
    ]
    known = energy_lines({"energy": {"parts": [{**part, "idle_power_w": 80.0}]}})
    assert known == [("NVIDIA H200", "no figure: it was lost, 80 W idle before the run")]


def test_each_of_several_nodes_says_its_share_or_why_there_is_none() -> None:
    shares = [
        {"node": 0, "host": "n0", "energy_j": 7200.0, "share": 0.6},
        {"node": 1, "host": "n1", "energy_j": None, "share": None, "reason": "the sampler did not start"},
    ]
    detail: dict[str, Any] = {"parts": [{**PART, "node": 0, "host": "n0"}], "nodes": shares}
    lines = energy_lines({"energy": {**detail, "node": {"energy_j": None, "reason": "node 1"}}})
    assert [label for label, _ in lines] == ["NVIDIA H200 (n0)", "node 0 (n0)", "node 1 (n1)"]
    assert [text for _, text in lines[1:]] == [
        "devices 7,200 J (2 Wh), 60 % of all", "no figure: the sampler did not start",
    ]  # fmt: skip
    whole = {"how": "measured", "energy_j": 9000.0, "power_w": 900.0}
    assert energy_lines({"energy": {**detail, "node": whole}})[-1][0] == "all nodes"


def test_the_node_says_whether_it_was_measured_and_notes_come_last() -> None:
    node = {"how": "sum of devices, a lower bound", "energy_j": 9000.0, "power_w": 900.0, "parts": ["GPU-1"]}
    lines = energy_lines({"energy": {"parts": [PART], "node": node, "notes": ["a RAPL zone is left out"]}})
    assert lines[1:] == [
        ("node", "9,000 J (2.5 Wh), 900 W mean (sum of devices, a lower bound)"),
        ("note", "a RAPL zone is left out"),
    ]


def test_a_record_without_energy_has_no_lines() -> None:
    for record in ({"energy": None}, {"energy": {}}, {"energy": {"parts": [], "node": None}}):
        assert energy_lines(record) == []


def test_the_synthetic_records_are_read(get_record: Any) -> None:
    """Records that were written before energy was measured."""
    assert energy_lines(get_record("-a00200")) == []
