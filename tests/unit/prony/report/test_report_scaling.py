"""The page shows a series with its plots, its alarms and its reasons, and draws no second plot of the same runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from documents import of_documents
from scaling_records import metric, scaled_record, series

from prony.analysis.scaling import scaling
from prony.report import build_report
from prony.report.lines import gained_row, lost_row, scaling_lines, scaling_title

scaling, build_report = map(of_documents, (scaling, build_report))


def test_a_report_about_a_series_has_its_section(tmp_path: Path) -> None:
    records = [*series({1: 1.0, 2: 1.9, 4: 3.6}), scaled_record(4, 3900.0, sync=False)]
    text = build_report(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="scaling">Scaling</h2>' in text
    assert "resnet50, weak scaling: 64 samples per step and device" in text
    assert text.count("speedup over one device") >= 1
    assert "7.7 % (3.4 to 11.8)" in text  # what communication takes on 4
    assert "Rate over what was varied" not in text


def test_a_report_without_a_series_has_none(tmp_path: Path) -> None:
    text = build_report(series({1: 1.0}), tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="scaling"' not in text


def test_an_alarm_stands_before_everything_else() -> None:
    found = scaling(series({1: 1.0, 2: 2.2}), "weak")
    (alarm,) = scaling_lines(found).alarms
    assert alarm.startswith("Alarm: 110.0 % (105.1 to 115.1) on 2 devices is more than there is to gain.")


def test_more_than_there_is_to_gain_is_not_carried_on() -> None:
    """The law has 100 % at most: it would miss the one point by far, and yet predict 100 % without a doubt."""
    found = scaling(series({1: 1.0, 2: 8.0}), "weak")
    notes = " ".join(scaling_lines(found).notes)
    assert found.fit is None
    assert "No fit and no prediction: more than 100 % is shown" in notes
    only_seen = scaling(series({1: 1.0, 2: 2.5}, half=None), "weak")  # no interval says that it is more
    notes = " ".join(scaling_lines(only_seen).notes)
    assert "it misses the speedups by 20.0 %" in notes
    assert "goes through every point" not in notes


def sending(devices: int, rate: float, **more: Any) -> dict[str, Any]:
    sent = {"communication_bytes": metric(2e8, "B"), "step_time": metric(0.1, "s")}
    return scaled_record(devices, rate, metrics=sent, **more)


def collective(devices: int, bandwidth: float, name: str = "allreduce", machine: str = "m", repeat: int = 0) -> Any:
    made = scaled_record(devices, bandwidth, repeat=repeat, metrics={"bus_bandwidth": metric(bandwidth, "B/s", 0.01)})
    return {
        **made, "id": f"{name}-{devices}-{machine}-{repeat}", "trial": {**made["trial"], "workload": name},
        "fingerprint": {**made["fingerprint"], "machine": machine},
    }  # fmt: skip


def test_what_is_sent_bounds_the_bandwidth() -> None:
    records = [*series({1: 1.0, 2: 1.9}), sending(4, 3600.0)]
    notes = scaling_lines(scaling(records, "weak")).notes
    assert "On 4 each device sends 190.7 MiB per step: a bus bandwidth of at least 2.000 GB/s." in notes
    assert "What the links can do was not measured; `prony run allreduce devices=4` would." in notes
    spread = [*series({1: 1.0, 2: 1.9}), sending(4, 3600.0, settings={"nodes": 2})]
    assert "`prony run allreduce devices=4 nodes=2` would." in " ".join(scaling_lines(scaling(spread, "weak")).notes)
    records.append(sending(4, 4000.0, sync=False))  # a tenth of the step is exposed
    notes = " ".join(scaling_lines(scaling(records, "weak")).notes)
    assert "at least 2.000 GB/s, and 20.00 GB/s were only its exposed part the exchange." in notes


def test_what_the_links_can_do_stands_beside_what_is_sent() -> None:
    """Of the same operation between as many devices of the same machine, and of those the latest."""
    there = [
        collective(4, 40e9), collective(4, 45e9, repeat=1), collective(2, 60e9), collective(4, 70e9, "allgather"),
        collective(4, 80e9, machine="other", repeat=2),
    ]  # fmt: skip
    found = scaling([*series({1: 1.0, 2: 1.9}), sending(4, 3600.0)], "weak", collectives=there)
    assert "allreduce between as many reached 45.00 GB/s here (allreduce-4-m-1)." in scaling_lines(found).notes
    assert found.points[0].link is None, "one device sends nothing"
    assert found.to_json()["points"][2]["link"]["bandwidth"]["value"] == 45e9


def test_the_page_finds_the_collectives_that_it_was_given(tmp_path: Path) -> None:
    records = [*series({1: 1.0, 2: 1.9}), sending(4, 3600.0), collective(4, 45e9)]
    text = build_report(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "allreduce between as many reached 45.00 GB/s here" in text


def test_rows_and_titles_are_for_a_person() -> None:
    found = scaling(series({1: 1.0, 2: 1.8}, "strong"), "strong")
    assert scaling_title(found) == "resnet50, strong scaling: 64 samples per step on all devices together"
    assert gained_row(found.points[0]) == ["1", "64", "1,000 images/s ± 3.3 %", "1", "100 %"]
    assert gained_row(found.points[1])[3:] == ["1.800 (1.720 to 1.884)", "90.0 % (86.0 to 94.2)"]
    assert lost_row(found.points[0]) is None
    assert lost_row(found.points[1]) == ["2", "10.0 % (5.8 to 14.0)", "–", "0.0 %", "–", "10.0 %"]
    notes = " ".join(scaling_lines(found).notes)
    assert (
        "In the rest, since it was not measured: communication and imbalance (it was not run with sync=off)." in notes
    )
    assert "it goes through every point, untested" in notes
    assert "include the variation between runs (between-run SD from the prior)" in notes
