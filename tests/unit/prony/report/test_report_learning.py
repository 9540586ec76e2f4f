"""The page shows what was learned: a line a run, the target, and quality where there is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents

from prony.report import build_report
from prony.report.lines import curve_table, data_lines, learning_lines
from prony.report.plots import has_axis, learning_keys, learning_svg
from prony.report.series import curves

build_report, curve_table, data_lines = map(of_documents, (build_report, curve_table, data_lines))
learning_lines, curves = map(of_documents, (learning_lines, curves))

GetRecord = Callable[[str], dict[str, Any]]
SEEDS = ("f00000", "f00001", "f00002", "f00003")


def page_of(folder: Path, *records: dict[str, Any]) -> tuple[str, str]:
    """The page, and its text."""
    html = build_report(list(records), folder / "page.html").read_text(encoding="utf-8")
    body = html[html.index("<body>") :]
    return html, " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_lines_take_the_colour_of_what_varies(get_record: GetRecord) -> None:
    (seeds,) = curves([get_record(end) for end in SEEDS])
    assert (seeds.colour_name, seeds.colour_values, seeds.targets) == ("seed", ["0", "1", "2", "3"], [0.93])
    batches = [get_record(f"f2000{number}") for number in range(4)]
    batches[1]["trial"]["effective"]["seed"] = 5
    (varied,) = curves(batches)
    assert (varied.colour_name, varied.colour_values) == ("batch_size", ["128", "512", "2048", "8192"])
    assert varied.targets == []
    (alone,) = curves([get_record("f10000")])
    assert (alone.colour_name, alone.colour_values, alone.score) == ("", [], "loss")


def test_scores_data_sets_and_devices_are_not_mixed(get_record: GetRecord) -> None:
    other = get_record("f00001")
    other["data"]["fingerprint"] = "another"
    further = get_record("f00002")
    further["facts"]["devices"][0]["name"] = "another"
    assert len(curves([get_record("f00000"), get_record("f10000"), other, further])) == 4
    assert curves([get_record("d00001")]) == []


def test_the_plot_has_a_line_a_run_and_a_dashed_target(get_record: GetRecord) -> None:
    (found,) = curves([get_record(end) for end in SEEDS])
    svg = learning_svg(found, "training_s", "one")
    assert len(re.findall("mark-line role-mark", svg)) == 4
    assert 'stroke-dasharray="6,4"' in svg
    assert "training time, in s" in svg
    assert "samples trained on" in learning_svg(found, "samples", "two")
    assert [key.text for key in learning_keys(found)] == ["0", "1", "2", "3"]


def test_more_runs_than_colours_are_told_apart_by_their_signs(get_record: GetRecord) -> None:
    records = [get_record("f00000") for _ in range(20)]
    for seed, record in enumerate(records):
        record["id"], record["trial"]["effective"]["seed"] = f"r{seed}", seed
    (found,) = curves(records)
    keys = {(key.sign, key.colour) for key in learning_keys(found)}
    assert len(keys) == 20
    assert found.colour_values == [str(seed) for seed in range(20)]


def test_a_long_training_is_drawn_in_minutes_and_thinned(get_record: GetRecord) -> None:
    record = get_record("f00000")
    record["learning"]["curve"] = [
        {"epoch": number, "training_s": 60.0 * number, "accuracy": 0.5} for number in range(1, 3001)
    ]
    (found,) = curves([record])
    assert len(found.lines[0].points) == 200
    assert "training time, in min" in learning_svg(found, "training_s", "one")
    assert not has_axis(found, "samples")


def test_page_with_seeds_and_targets(tmp_path: Path, get_record: GetRecord) -> None:
    html, text = page_of(tmp_path, *(get_record(end) for end in SEEDS))
    assert html.count("<svg") == 2
    assert "time to quality" in text
    assert "accuracy 0.9341 34.53 s" in text
    assert "not reached" in text
    assert "dashed: the target, 93 %" in text
    assert "4 seeds (0, 1, 2, 3)" in text
    assert "1 of 4 runs did not reach accuracy>=0.93" in text
    assert "target reached" in text
    assert "cifar10 in /data/cifar10, requested as ./cifar10" in text
    assert 'class="phase evaluation"' in html


def test_page_with_batch_sizes_has_quality_beside_the_rate(tmp_path: Path, get_record: GetRecord) -> None:
    html, text = page_of(tmp_path, *(get_record(f"f2000{number}") for number in range(4)))
    assert html.count("<svg") == 2 + 2
    assert "Rate and quality over what was varied" in text
    assert "wideresnet over batch_size" in text
    assert "dashed" not in text


def test_page_without_learning_says_nothing_of_it(tmp_path: Path, get_record: GetRecord) -> None:
    _, text = page_of(tmp_path, get_record("a00200"), get_record("a01001"))
    assert "quality" not in text
    assert "What was learned" not in text


@pytest.mark.parametrize(
    "learning",
    [None, {}, {"curve": None}, {"curve": [{}, {"accuracy": 0.5}], "score": "accuracy"},
     {"score": "<script>", "until": "<script>", "target": 0.5, "reached": {},
      "curve": [{"<script>": 0.4, "training_s": 1.0, "samples": 3}, {"<script>": float("nan"), "samples": None}]}],
)  # fmt: skip
def test_a_page_can_be_made_of_whatever_a_record_states(tmp_path: Path, get_record: GetRecord, learning: Any) -> None:
    record = get_record("f00000") | {"learning": learning, "data": {"folder": "<script>", "staged": {"bytes": None}}}
    html, text = page_of(tmp_path, record, record | {"id": "other"})
    assert "<script" not in html
    assert "accuracy 0.9382" in text


def test_a_curve_of_the_loss_has_one_column_of_it(get_record: GetRecord) -> None:
    table = curve_table(get_record("f10000"))
    assert table is not None
    assert table.header == ["epoch", "steps", "training time", "loss"]
    assert dict(learning_lines(get_record("f10000")))["target"] == "loss<=0.35, reached after epoch 17, 816 steps"


def test_a_detector_that_has_no_loss_on_the_test_split_has_no_column_of_dashes(get_record: GetRecord) -> None:
    record = get_record("f00000")
    record["learning"] |= {"score": "map", "curve": [{"epoch": 1, "steps": 6, "training_s": 2.3, "map": 0.25}]}
    table = curve_table(record)
    assert table is not None
    assert (table.header, table.rows) == (["epoch", "steps", "training time", "map"], [["1", "6", "2.300 s", "0.2500"]])


def test_data_that_was_staged_and_generated() -> None:
    data = {
        "source": "generated", "kind": "imagenet", "folder": "/scratch/set", "samples": 1000, "bytes": 3 * 2**30,
        "held": "files", "decoded_on_device": 0.312,
        "staged": {"folder": "/local/set", "files": 3, "bytes": 2**30, "copied_bytes": 0, "seconds": 2.5},
        "generated": {"kind": "imagenet", "samples": 1000, "form": "shards", "list_sha256": "00ff"},
    }  # fmt: skip
    lines = dict(data_lines({"data": data}))
    assert lines["set"] == "imagenet in /scratch/set, requested as generated"
    assert lines["samples"] == "1,000 to train, 3.000 GiB"
    assert lines["held"] == "read from its files"
    assert lines["decoded"] == "31% by the device, the rest by workers"
    assert lines["staged"] == "to /local/set, 3 files, 1.000 GiB, 0 B of it copied now in 2.500 s"
    assert lines["generated"] == "kind imagenet, samples 1,000, form shards"


def test_the_spread_of_shapes_is_told_and_nothing_else_is_taken_for_one() -> None:
    spread = {"mean": 481.25, "least": 300, "most": 640, "p5": 375, "p50": 480, "p95": 640}
    boxes = {**spread, "mean": 7.16, "p5": 1, "p95": 21}
    work = {"shapes": {"images": 40, "height": spread, "width": spread, "boxes": boxes, "padding_share": 0.1}}
    told = dict(data_lines({"work": work}))
    sizes = "481.2 high (375 to 640), 481.2 wide (375 to 640)"
    assert told == {"images": f"{sizes}, 7.16 boxes (1 to 21), on average and nine in ten of them"}
    for strange in (None, {"height": 4}, {"height": {"mean": "x"}}):
        assert data_lines({"work": {"shapes": strange}}) == []


def test_how_often_a_workload_waits_for_the_device_is_told() -> None:
    assert dict(data_lines({"work": {"own_synchronisations_per_step": 1.0}})) == {
        "waits": "1 per step for the device, the workload's own"
    }
    assert data_lines({"work": {}}) == []
