"""The plot must put along its axis what was swept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from documents import of_documents

from prony.report.series import MOST_POINTS, learned_sweeps, read_series, sweeps

learned_sweeps, sweeps, read_series = map(of_documents, (learned_sweeps, sweeps, read_series))

GetRecord = Callable[[str], dict[str, Any]]
SWEEP = ("a00200", "a01001", "a04002", "a00203", "a01004", "a04005")


def test_numbers_along_the_axis_words_in_colour(get_record: GetRecord) -> None:
    (sweep,) = sweeps([get_record(end) for end in SWEEP])
    assert (sweep.x_name, sweep.colour_name, sweep.logarithmic) == ("batch_size", "precision", True)
    assert sweep.x_values == ["32", "256", "1024"]
    assert sweep.colour_values == ["fp32", "bf16"]  # in the setting's own order
    assert len(sweep.points) == 6


def test_narrow_range_has_a_linear_axis(get_record: GetRecord) -> None:
    records = [get_record("a00200"), get_record("a01001")]
    records[1]["trial"]["effective"]["batch_size"] = 64
    assert not sweeps(records)[0].logarithmic


def test_words_alone_along_the_axis(get_record: GetRecord) -> None:
    (sweep,) = sweeps([get_record("a00200"), get_record("a00203")])
    assert (sweep.x_name, sweep.numeric, sweep.x_values) == ("precision", False, ["fp32", "bf16"])


def test_zero_workers_do_not_break_a_logarithmic_axis(get_record: GetRecord) -> None:
    records = [get_record(end) for end in ("a00200", "a01001")]
    for record, workers in zip(records, (0, 16), strict=True):
        record["trial"]["effective"] |= {"workers": workers, "batch_size": 32}
    (sweep,) = sweeps(records)
    assert (sweep.x_name, sweep.logarithmic) == ("workers", False)


def test_failed_runs_single_runs_and_three_settings_make_no_plot(get_record: GetRecord) -> None:
    assert sweeps([get_record("b00f07"), get_record("d00001")]) == []
    records = [get_record("a00200"), get_record("a01004")]
    records[0]["trial"]["effective"]["compile"] = "off"
    assert sweeps(records) == []


def test_what_follows_from_another_setting_is_not_varied(get_record: GetRecord) -> None:
    """batch_size and cores come from global_batch and devices: two settings were swept, and both are drawn."""
    records = []
    for devices, batch in ((1, 64), (1, 256), (2, 64), (2, 256)):
        record = get_record("a00200")
        asked = {"devices": devices, "global_batch": batch, "grad_accumulation": batch // 64}
        record["trial"]["settings"] = asked
        record["trial"]["effective"] |= {**asked, "batch_size": 64 // devices, "cores": f"0-{4 * devices - 1}"}
        records.append(record)
    (sweep,) = sweeps(records)
    assert {sweep.x_name, sweep.colour_name} == {"global_batch", "devices"}
    # Cores that differ where nothing else does are the machine's, and no line may join them.
    records[3]["trial"]["effective"] |= {"devices": 1, "cores": "0-31"}
    assert sweeps(records) == []


def test_batches_that_were_asked_for_beside_a_global_batch_are_varied(get_record: GetRecord) -> None:
    records = []
    for batch, total in ((16, 64), (32, 64), (16, 128), (32, 128)):
        record = get_record("a00200")
        record["trial"]["settings"] = {"batch_size": batch, "global_batch": total}
        record["trial"]["effective"] |= {"batch_size": batch, "global_batch": total}
        records.append(record)
    (sweep,) = sweeps(records)
    assert {sweep.x_name, sweep.colour_name} == {"global_batch", "batch_size"}


def test_devices_are_not_mixed_in_one_plot(get_record: GetRecord) -> None:
    records = [get_record("a00200"), get_record("a01001")]
    records[1]["facts"]["devices"][0]["name"] = "another"
    assert sweeps(records) == []


def test_long_series_keeps_its_extremes_and_its_cut(tmp_path: Path) -> None:
    lines = ["block,steps,end_s,duration_s,data_wait_s"]
    for block in range(10_000):
        duration_s = 0.9 if block == 7777 else 0.1
        lines.append(f"{block},10,{(block + 1) * 0.1:.3f},{duration_s},0")
    (tmp_path / "steps.csv").write_text("\n".join(lines), encoding="utf-8")
    series = read_series(tmp_path, {"steady": {"cut_steps": 100, "step_time_s": 0.01}})
    assert series is not None
    assert len(series.points) <= MOST_POINTS
    assert max(point.most_s for point in series.points) == 0.09
    assert series.cut_s == 1.0


def test_seeds_are_points_and_never_an_axis(get_record: GetRecord) -> None:
    records = [get_record(end) for end in SWEEP[:3] for _ in range(4)]
    for number, record in enumerate(records):
        record["trial"]["effective"]["seed"] = number % 4
    (sweep,) = sweeps(records)
    assert (sweep.x_name, sweep.colour_name, len(sweep.points)) == ("batch_size", None, 12)
    assert sweeps(records[:4]) == []


def test_quality_stands_beside_the_rate_over_the_same_setting(get_record: GetRecord) -> None:
    records = [get_record(f"f2000{number}") for number in range(4)]
    ((rate, quality),) = learned_sweeps(records)
    assert (rate.metric, quality.metric, quality.unit) == ("throughput", "quality", "accuracy")
    assert rate.x_name == quality.x_name == "batch_size"
    assert rate.x_values == quality.x_values == ["128", "512", "2048", "8192"]
    low, high = quality.points[0].low, quality.points[0].high
    assert low is not None
    assert high is not None
    assert low < quality.points[0].value < high


def test_times_to_a_target_leave_out_who_missed_it(get_record: GetRecord) -> None:
    records = [get_record(f"f0000{number}") for number in range(4)]
    for number, record in enumerate(records):
        record["trial"]["effective"] |= {"seed": 0, "batch_size": 64 * 2**number}
    ((_, quality, time),) = learned_sweeps(records)
    assert (len(quality.points), quality.missing) == (4, 0)
    assert (time.metric, len(time.points), time.missing) == ("time_to_quality", 3, 1)
    assert time.x_values == ["64", "128", "256", "512"]


def test_runs_to_another_target_are_not_in_one_plot(get_record: GetRecord) -> None:
    assert learned_sweeps([get_record("f00000"), get_record("f20001")]) == []
    other = get_record("f20001")
    other["data"]["fingerprint"] = "another"
    assert learned_sweeps([get_record("f20000"), other]) == []
