"""The plots of the shipped studies: each is drawn with and without runs, ours before the published, nothing unsaid."""

from __future__ import annotations

import json
import re
from typing import Any

import altair as alt
import pytest
import vl_convert
from documents import of_documents

from prony.analysis.published_plots import HEAT, LINES, Plot, draw
from prony.analysis.published_tables import StudyResults
from prony.catalog import Matched, PlotSpec
from prony.report.build import report_text
from prony.report.published import Captioned, panel_title, plot_caption
from prony.report.published_plots import FILE, PAGE, plot_file, plot_svg, specification
from prony.study.study import Study
from prony.study.study_file import load_study
from prony_node.contract.trial import Trial
from prony_node.stats import between_run
from prony_node.workloads import find_workload

draw, report_text = map(of_documents, (draw, report_text))

NAMES = ("caraml", "hurt-nrp", "nasari-pearc22", "olivia-gh200")
STUDIES = {name: load_study(name, "full", (), find_workload) for name in NAMES}
EVERY = [pytest.param(name, place, id=f"{name}: {spec.title}")
         for name, study in STUDIES.items() for place, spec in enumerate(study.plots)]  # fmt: skip
GPT, ONE_DEVICE, GRID = "GPT of 800", "ResNet-50 on one device", "ResNet-50 over global batches and devices"


def record_of(trial: Trial, rate: float = 1000.0) -> dict[str, Any]:
    devices = int(str(trial.settings.get("devices", 1)))
    values = {"throughput": rate, "throughput_per_device": rate / devices, "samples_per_wh": 20.0 * rate}
    values["power"] = 500.0
    effective = {"precision": "fp32", "data": "device", "batch_size": 64, "compile": "off", **trial.settings}
    return {
        "id": f"{trial.workload}-{trial.hash}", "status": "ok", "unit": "images", "phases": {},
        "trial": {"workload": trial.workload, "settings": trial.settings, "effective": effective},
        "metrics": {name: {"value": one, "low": 0.9 * one, "high": 1.2 * one} for name, one in values.items()},
        "work": {"units": 1000, "steps": 10}, "facts": {"devices": [{"name": "NVIDIA H200"}]},
    }  # fmt: skip


def out_of_memory(trial: Trial) -> dict[str, Any]:
    return {**record_of(trial), "status": "failed", "failure": {"kind": "out-of-memory"}}


def known_of(study: Study, most_batch: int = 10**9) -> StudyResults:
    """A run of every trial; from this global batch on it ran out of memory."""
    trials = [one.trial for one in study.planned()]
    records = {
        one.hash: [
            out_of_memory(one) if int(str(one.settings.get("global_batch", 0))) >= most_batch else record_of(one)
        ]
        for one in trials
    }
    return StudyResults(trials, records)


def plot_of(name: str, title: str, known: StudyResults | None = None) -> Plot:
    (spec,) = [one for one in STUDIES[name].plots if one.title.startswith(title)]
    return draw(spec, known_of(STUDIES[name]) if known is None else known)


@pytest.mark.parametrize(("name", "place"), EVERY)
def test_every_plot_is_valid_with_runs_and_without(name: str, place: int) -> None:
    study = STUDIES[name]
    spec = study.plots[place]
    for known in (known_of(study, most_batch=1024), StudyResults([], {})):
        plot = draw(spec, known)
        if not plot.panels:
            assert not spec.figures, "what is published is drawn without any run"
            continue
        document = specification(plot, FILE)
        svg = vl_convert.vegalite_to_svg(document)
        for panel in plot.panels:
            seen = [(one.name, mark.x, mark.y) for one in panel.series for mark in one.marks]
            assert len(seen) == len(set(seen)), "two values fell into one place"
            for one in panel.series:
                assert one.name in svg
        assert not re.search(r"var\(|NaN|undefined", svg)
        width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg).group(1))  # type: ignore[union-attr]
        assert width < 370, "wider than a column of a paper"


@pytest.mark.parametrize(
    ("name", "title"), [("caraml", ONE_DEVICE), ("caraml", GRID), ("olivia-gh200", "Tests 8 to 12: precisions")]
)
def test_a_specification_of_each_kind_is_vega_lite_by_its_schema(name: str, title: str) -> None:
    alt.Chart.from_dict(specification(plot_of(name, title, known_of(STUDIES[name], most_batch=1024)), FILE))


def test_every_publication_has_its_plots_and_ours_are_in_all_of_them() -> None:
    for name, study in STUDIES.items():
        assert study.plots
        for spec in study.plots:
            plot = draw(spec, known_of(study))
            assert plot.has_ours or spec.workloads == ("resnet50", "swin-t"), f"{name}: {spec.title}"
            assert plot.has_published == bool(spec.figures)


def test_published_series_are_muted_and_behind_ours() -> None:
    panel = specification(plot_of("caraml", ONE_DEVICE), FILE)["concat"][0]
    drawn = [layer["data"]["values"][0]["series"] == "ours" for layer in panel["layer"]]
    assert drawn == sorted(drawn), "ours come last, so they lie in front"
    assert drawn.count(True) >= 3
    scale = panel["layer"][-1]["encoding"]["stroke"]["scale"]
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    assert colours["ours"] == FILE.series[0]
    assert {colour for name, colour in colours.items() if name != "ours"} == {FILE.muted}
    shapes = panel["layer"][-1]["encoding"]["shape"]["scale"]["range"]
    assert len(set(shapes[1:])) == len(shapes[1:]), "grey series differ in their shape"


def test_cells_that_ran_out_of_memory_are_marked_and_so_are_larger_ones() -> None:
    study = STUDIES["caraml"]
    known = known_of(study, most_batch=4096)
    pruned = next(
        one for one in known.trials
        if (one.workload, one.settings["devices"], one.settings["global_batch"]) == ("resnet50", 1, 2048)
    )  # fmt: skip
    records = {trial: those for trial, those in known.records.items() if trial != pruned.hash}
    plot = plot_of("caraml", GRID, StudyResults(known.trials, records, beyond_memory={pruned.hash}))
    (ours,) = plot.series(ours=True)
    assert {(mark.x, mark.y) for mark in ours.marks if mark.value is None} >= {
        ("2048", "1"),
        ("4096", "1"),
        ("4096", "4"),
    }
    svg = vl_convert.vegalite_to_svg(specification(plot, FILE))
    assert svg.count(">OOM<") == sum(mark.value is None for mark in ours.marks)
    assert any("Out of memory (OOM), ours: global batch and devices" in line for line in plot_caption(plot, "", ""))
    lines = plot_of("caraml", ONE_DEVICE, known)
    assert ">● OOM<" in vl_convert.vegalite_to_svg(specification(lines, FILE))


def test_ours_on_three_devices_stand_where_the_published_ones_do() -> None:
    """Each has the whole part of a third of the global batch, so its trials name that."""
    (ours,) = plot_of("caraml", GRID).series(ours=True)
    assert {mark.x for mark in ours.marks if mark.y == "3"} == {str(16 * 2**step) for step in range(9)}
    assert {mark.y for mark in ours.marks} == {"1", "2", "3", "4"}
    assert len(ours.marks) == 4 * 9, "one value in each cell"


def test_a_caption_says_whose_series_are_drawn_what_is_not_and_what_differs() -> None:
    caption = plot_caption(plot_of("nasari-pearc22", "Figure 1"), "Nasari et al.", "NVIDIA H200")
    assert caption[0] == "Figure 1: ResNet-50 in PyTorch over devices."
    assert "Grey: as published (Nasari et al.)." in caption
    assert "In colour: ours, on NVIDIA H200." in caption
    (undrawn,) = [line for line in caption if line.startswith("Not drawn")]
    assert "V100" in undrawn
    assert "DGX-A100" in undrawn
    assert any(
        line.startswith("Not the same on both sides: device (published GC200; ours NVIDIA H200)") for line in caption
    )
    alone = plot_caption(plot_of("nasari-pearc22", "Figure 1", StudyResults([], {})), "", "")
    assert "There are no runs of ours to draw." in alone
    gpt = plot_caption(plot_of("caraml", GPT), "", "")
    assert "Not drawn in power per device, since no numbers are published: JURECA MI250, 8 devices." in gpt


def test_only_gaps_are_published_of_inference_and_the_caption_says_so() -> None:
    (spec,) = [one for one in STUDIES["hurt-nrp"].plots if one.title.startswith("Fig. 2")]
    trials = [
        Trial(workload, {"mode": "infer", "devices": devices})
        for workload in ("resnet50", "swin-t")
        for devices in (1, 4)
    ]
    plot = draw(spec, StudyResults(trials, {one.hash: [record_of(one, 2500.0)] for one in trials}))
    time, rate = plot.panels
    assert (time.unit, time.series[0].marks[0].value) == ("s", 20.0)
    assert (rate.unit, [one.name for one in rate.series]) == ("images/s", ["ours, 1 device", "ours, 4 devices"])
    caption = plot_caption(plot, "", "a machine")
    assert "No published series." in caption
    assert any("4xA100, GH200" in line for line in caption if line.startswith("Not drawn"))
    assert "41.7 %" in caption[-1]
    assert "Our time is calculated from the steady rate." in caption


@pytest.mark.parametrize(("images", "seconds", "rate"), [(50_000, 40.0, 1250.0), (10_000, 20.0, 2500.0)])
def test_a_pass_over_all_validation_images_is_drawn_with_its_measured_time(
    images: int, seconds: float, rate: float
) -> None:
    """One over fewer images is not, and its time is calculated."""
    trials = [Trial("resnet50", {"mode": "infer", "devices": devices}) for devices in (1, 4)]
    records = {one.hash: [record_of(one, 2500.0)] for one in trials}
    records[trials[1].hash][0]["metrics"] |= {"split_time": {"value": 40.0}, "split_throughput": {"value": images / 40}}
    plot = plot_of("hurt-nrp", "Fig. 2", StudyResults(trials, records))
    four = {panel.metric: one.marks[0] for panel in plot.panels for one in panel.series if "4 devices" in one.name}
    assert (four["time"].value, four["throughput"].value) == (seconds, rate)
    said = [line for line in plot_caption(plot, "", "") if line.startswith("Our time is")]
    if images == 50_000:
        assert said == [
            "Our time is calculated from the steady rate: resnet50, ours, 1 device.",
            "Our time is measured with its rate, in one pass over all samples, loading included: "
            "resnet50, ours, 4 devices.",
        ]
    else:
        assert said == ["Our time is calculated from the steady rate."]


def test_quantities_that_are_not_the_same_have_panels_of_their_own() -> None:
    plot = plot_of("caraml", ONE_DEVICE)
    titles = [panel_title(plot, panel) for panel in plot.panels]
    assert titles == [
        "rate, img/s",
        "energy, Wh (published)",
        "energy, Wh per million images (ours)",
        "images per energy, 1/Wh",
    ]
    assert [any(one.ours for one in panel.series) for panel in plot.panels] == [True, False, True, True]
    assert any("the length of the published runs is not stated" in line for line in plot_caption(plot, "", ""))


def test_an_interval_is_that_within_one_run_and_that_between_several() -> None:
    spec = PlotSpec("a plot", workloads=("resnet50",), x="devices", match={"devices": Matched("devices")})
    timed = PlotSpec(
        "a plot", workloads=("resnet50",), x="devices", match=spec.match, metrics=("time",), samples={"a": 500}
    )
    trial = Trial("resnet50", {"devices": 1})
    ((mark,),) = [
        one.marks for one in draw(spec, StudyResults([trial], {trial.hash: [record_of(trial)]})).series(ours=True)
    ]
    assert (mark.value, mark.low, mark.high) == (1000.0, 900.0, 1200.0)
    ((mark,),) = [
        one.marks for one in draw(timed, StudyResults([trial], {trial.hash: [record_of(trial)]})).series(ours=True)
    ]
    assert (mark.value, mark.low, mark.high) == (0.5, 500 / 1200, 500 / 900), "a fast end is a short time"
    several = {trial.hash: [record_of(trial, rate) for rate in (990.0, 1000.0, 1100.0)]}
    ((mark,),) = [one.marks for one in draw(spec, StudyResults([trial], several)).series(ours=True)]
    between = between_run([990.0, 1000.0, 1100.0])
    assert (mark.value, mark.low, mark.high) == (between.mean, between.low, between.high), "not the median, 1000"


def test_a_rate_is_that_of_all_devices_and_each_metric_has_its_unit() -> None:
    """Published rates are drawn as totals, also where a plot does not go by devices."""
    spec = PlotSpec("a plot", workloads=("resnet50",), x="workload", metrics=("throughput", "cpu_utilisation"))
    trial = Trial("resnet50", {"devices": 4})
    record = record_of(trial, 4000.0)
    record["metrics"]["cpu_utilisation"] = {"value": 0.0}
    plot = draw(spec, StudyResults([trial], {trial.hash: [record]}))
    assert [(panel.unit, panel.series[0].marks[0].value) for panel in plot.panels] == [("images/s", 4000.0), ("1", 0.0)]
    (rate, share) = specification(plot, FILE)["concat"]
    assert [len(layer["data"]["values"]) for one in (rate, share) for layer in one["layer"]] == [1] * 6, "0 is a value"


def test_a_caption_says_how_many_values_have_no_interval() -> None:
    spec = PlotSpec("a plot", workloads=("resnet50",), x="devices", match={"devices": Matched("devices")})
    trials = [Trial("resnet50", {"devices": devices}) for devices in (1, 2)]
    records = {one.hash: [record_of(one)] for one in trials}
    known = StudyResults(trials, records)
    within = "Bars are 95 % CIs, within one run where there is one; "
    assert f"{within}where none shows, it is smaller than the mark." in plot_caption(draw(spec, known), "", "")
    rate = records[trials[1].hash][0]["metrics"]["throughput"]
    rate["low"] = rate["high"] = None
    assert f"{within}1 of our 2 values have none." in plot_caption(draw(spec, known), "", "")


def test_series_of_ours_that_would_lie_on_each_other_are_told_apart() -> None:
    """Prefetching is no field of a figure; two runs that differ in it are two series."""
    words = {"devices": 4, "precision": "bf16", "batch_size": 256, "workers": 8, "cores": "25%"}
    trials = [Trial("wideresnet", {**words, "prefetch": prefetch}) for prefetch in (2, 4)]
    plot = plot_of("olivia-gh200", "Tests 6 and", StudyResults(trials, {one.hash: [record_of(one)] for one in trials}))
    assert [one.name for one in plot.series(ours=True)] == [
        "ours, Tests 8-12, 4 devices, prefetch=2",
        "ours, Tests 8-12, 4 devices, prefetch=4",
    ]


def test_published_power_and_work_per_energy_of_gpt_are_drawn_for_runs_of_an_hour() -> None:
    plot = plot_of("caraml", GPT)
    assert [panel.metric for panel in plot.panels] == ["tflops_per_device", "power_per_device", "tokens_per_energy"]
    for panel in plot.panels:
        assert {one.ours for one in panel.series} == {True, False}, panel.metric
    assert "runs of one hour, which is an assumption" in plot_caption(plot, "", "")[-1]


def test_what_has_no_ratio_is_not_drawn_and_the_caption_says_why() -> None:
    plot = plot_of("caraml", "GPT of 117 million")
    assert [panel.metric for panel in plot.panels] == ["throughput"]
    assert (
        "Not drawn: energy per epoch and device and tokens per energy, since the published energy is of more than "
        "the steps of an epoch." in plot_caption(plot, "", "")
    )


def test_figure_1_has_two_precisions_and_figure_2_the_batch_of_the_gpus() -> None:
    first = plot_of("nasari-pearc22", "Figure 1")
    assert [one.name for one in first.series(ours=True)] == ["ours, tf32", "ours, mixed"]
    assert [len(one.marks) for one in first.series(ours=True)] == [5, 5]
    second = plot_of("nasari-pearc22", "Figure 2")
    places = {one.name: [mark.x for mark in one.marks] for one in second.series(ours=True)}
    assert places["ours, batch 256"] == ["1", "2", "4", "8"]
    assert "1" in places["ours, batch 20"]
    for plot in (first, second):
        (panel,) = specification(plot, FILE)["concat"]
        scales = {layer["encoding"]["y"]["scale"].get("type") for layer in panel["layer"]}
        assert scales == {"log"}, "over many devices, both axes are logarithmic"


def test_bars_of_ours_alone_share_a_scale_so_that_their_length_says_something() -> None:
    """With a scale for each model every bar would be as long as the others."""
    study = STUDIES["hurt-nrp"]
    known = known_of(study)
    records = {
        trial.hash: [record_of(trial, 10_000.0 if trial.workload == "resnet50" else 100.0)] for trial in known.trials
    }
    plot = plot_of("hurt-nrp", "Table I (a)", StudyResults(known.trials, records))
    assert [(panel.is_ours, panel.is_logarithmic) for panel in plot.panels] == [(False, False), (True, True)]
    rows = specification(plot, FILE)["vconcat"]
    scales = [row["hconcat"][1]["layer"][1]["encoding"]["x"]["scale"] for row in rows]
    assert {scale["type"] for scale in scales} == {"log"}
    assert len({tuple(scale["domain"]) for scale in scales}) == 1
    assert "Bars of ours share one logarithmic scale." in plot_caption(plot, "", "")


def test_a_wide_axis_is_logarithmic_with_plain_numbers() -> None:
    svg = vl_convert.vegalite_to_svg(specification(plot_of("caraml", ONE_DEVICE), FILE))
    assert all(f">{batch}<" in svg for batch in ("16", "64", "1,024"))
    assert not re.search(r">\d+(\.\d+)?e[+-]?\d+<|>1k<", svg)


@pytest.mark.parametrize(
    ("kind", "magic"), [("svg", b"<svg"), ("pdf", b"%PDF-"), ("png", b"\x89PNG\r\n\x1a\n"), ("json", b"{")]
)
def test_files_are_what_their_name_says(kind: str, magic: bytes) -> None:
    captioned = Captioned(plot_of("nasari-pearc22", "Figure 2"), ["Figure 2.", "Grey: as published."])
    content = plot_file(captioned, kind)
    assert content.startswith(magic)
    if kind == "json":
        document = json.loads(content)
        assert document["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
        assert document["description"] == "Figure 2. Grey: as published."


@pytest.mark.parametrize("kind", [LINES, HEAT])
def test_a_hostile_title_and_series_stay_text(kind: str, get_record: Any) -> None:
    evil = "</figcaption></svg><script>alert(1)</script>"
    spec = PlotSpec(
        evil, workloads=("resnet50",), kind=kind, x="devices", y="workload" if kind == HEAT else "", undrawn=(evil,),
        match={"devices": Matched("devices"), "data": Matched("place")}, series=("place",), note=evil,
    )  # fmt: skip
    trial = Trial("resnet50", {"devices": 1, "data": evil})
    plot = draw(spec, StudyResults([trial], {trial.hash: [record_of(trial)]}))
    captioned = Captioned(plot, plot_caption(plot, evil, evil))
    page = report_text([get_record("d00001")], plots=[captioned])
    assert "alert(1)" in page
    assert "<script" not in page
    assert b"<script" not in plot_file(captioned, "svg")


def test_a_page_follows_light_and_dark() -> None:
    """Its colours are the page's; a file has its own, and a white ground."""
    plot = plot_of("caraml", GRID)
    svg = plot_svg(plot, "published0")
    assert "var(--series-1)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg.replace("#000000", "")), "a colour that does not follow"
    assert specification(plot, PAGE)["background"] == "transparent"
    assert specification(plot, FILE)["background"] == "#ffffff"
