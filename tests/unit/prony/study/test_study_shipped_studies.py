"""The studies that ship with Prony: every trial can be run somewhere, every published figure has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from prony.analysis.published_tables import MEASURES, NOT_IN_SIZE, StudyResults, fill
from prony.catalog import PlotSpec, TableSpec, figures, published_names
from prony.study.study import study_of_words
from prony.study.study_file import StudyFileOptions, load_study, parse_study, shipped_studies
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import find_workload

NAMES = ("caraml", "hurt-nrp", "nasari-pearc22", "olivia-gh200")
TABLE = """
workloads: resnet50
tables:
  - title: a table
    figures: hurt-nrp
    where: {place: Table I}
    metrics: time
"""
PLOT = """
workloads: resnet50
plots:
  - title: a plot
    kind: heat
    figures: caraml-sc24
    where: {workload: resnet50}
    metrics: [throughput, energy]
    x: global_batch
    y: devices
    series: system
    match: {devices: devices, global_batch: global_batch}
    only: {precision: [fp16, bf16], mode: }
    undrawn: [A100, V100]
"""


def specs(name: str) -> tuple[TableSpec, ...]:
    return load_study(name, None, (), find_workload).tables


def test_four_studies_are_shipped() -> None:
    assert tuple(shipped_studies()) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["quick", "full"])
def test_no_trial_is_refused_and_the_study_says_what_it_is(name: str, size: str) -> None:
    study = load_study(name, size, (), find_workload)
    planned = study.planned()
    assert [str(one.trial) for one in planned if one.refused] == []
    assert study.question.endswith("?")
    assert study.source
    assert min(len(study.stated), len(study.assumptions), len(study.cannot), len(study.tables)) >= 3
    assert all(one.what and one.source for one in (*study.stated, *study.assumptions))
    one_device = [one for one in planned if one.trial.settings.get("devices", 1) == 1]
    assert len(one_device) == len({one.trial.hash for one in one_device})
    # On one device a quick study is a coffee break.
    assert len(one_device) in {"quick": range(9, 18), "full": range(10, 80)}[size]


@pytest.mark.parametrize("name", NAMES)
def test_every_published_figure_has_a_place_and_a_trial_beside_it(name: str) -> None:
    study = load_study(name, "full", (), find_workload)
    known = StudyResults([one.trial for one in study.planned()], {})
    cells = [cell for spec in study.tables for cell in fill(spec, known).cells()]
    shown = {cell.figure for cell in cells}
    every = {figure for spec in study.tables if spec.figures for figure in figures(spec.figures)}
    assert every - shown == set()
    assert [cell.figure for cell in cells if cell.why == NOT_IN_SIZE] == []


def test_caraml_s_gpts_have_the_stated_micro_batches_and_layouts() -> None:
    """Of the suite's llm_benchmark_nvidia_amd.yaml and llm_benchmark_ipu.yaml."""
    trials = [one.trial for one in load_study("caraml", "full", (), find_workload).planned()]
    stated = {"gpt-800m": (4, "fp16", 1, 1), "gpt-13b": (2, "bf16", 2, 2), "gpt-175b": (2, "bf16", 8, 8)}
    machine = Machine("cuda", 139.0, 16)
    for trial in trials:
        found = find_workload(trial.workload).effective(trial.settings, machine)
        layout = (found["batch_size"], found["precision"], found.get("tp", 1), found.get("pp", 1))
        assert layout == stated.get(trial.workload, layout), str(trial)
        if "pp" in trial.settings and trial.workload == "gpt-117m":
            assert (found["batch_size"], found["pp"], found["recompute"]) == (1, 4, True)
    batches = [trial.settings["batch_size"] for trial in trials if trial.settings["devices"] == 3]
    assert batches == [2**power // 3 for power in range(4, 13)]


def test_every_publication_is_repeated() -> None:
    assert {spec.figures for name in NAMES for spec in specs(name)} - {""} == set(published_names())


@pytest.mark.parametrize("spec", [spec for name in NAMES for spec in specs(name)], ids=lambda spec: spec.title)
def test_a_table_has_a_cell_for_each_of_its_figures(spec: TableSpec) -> None:
    assert len(fill(spec, StudyResults([], {})).cells()) == len(spec.chosen()), "two figures fell into one cell"
    assert set(spec.metrics) <= set(MEASURES)


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("figures: hurt-nrp", "figures: hurt-npr", "line 5, column 14: unknown publication 'hurt-npr'; did you mean"),
        ("Table I", "Table IX", "line 6, column 20: unknown place 'Table IX'"),
        ("where: {place", "where: {plaice", "line 6, column 13: unknown field of a figure 'plaice'"),
        ("metrics: time", "metrics: tyme", "none of the figures of hurt-nrp is chosen"),
        ("metrics: time", "match: {batchsize: global_batch}", "unknown setting 'batchsize'; did you mean 'batch_size'"),
        ("metrics: time", "match: {batch_size: {field: dataset}}", "write {field: ..., values: {...}}"),
        ("metrics: time", "only: {mode: sing}", "mode"),
        ("metrics: time", "epochs: many", "epochs is a number, not 'many'"),
        ("metrics: time", "samples: {ImageNet: 1e999}", "samples is 1e999, which is too large a number"),
        ("metrics: time", "run_hours: 0", "run_hours is a number above 0"),
        ("metrics: time", "colums: system", "'colums' has no meaning in a table; did you mean 'columns'"),
        ("title: a table", "note: a table", "a table has a title"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_where_it_stands(was: str, becomes: str, message: str) -> None:
    parse_study(TABLE, "mine.yaml", StudyFileOptions(None), find_workload)
    with pytest.raises(RequestError) as caught:
        parse_study(TABLE.replace(was, becomes, 1), "mine.yaml", StudyFileOptions(None), find_workload)
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine.yaml, line ")


def test_a_plot_is_read_as_tables_are() -> None:
    (spec,) = parse_study(PLOT, "mine.yaml", StudyFileOptions(None), find_workload).plots
    assert (spec.kind, spec.x, spec.y, spec.series) == ("heat", "global_batch", "devices", ("system",))
    assert spec.only == {"precision": ("fp16", "bf16"), "mode": (None,)}
    assert spec.undrawn == ("A100", "V100")
    assert {figure.metric for figure in spec.chosen()} == {"throughput", "energy"}


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("kind: heat", "kind: heap", "line 5, column 11: unknown kind 'heap'; did you mean 'heat'?"),
        ("kind: heat", "kind: lines", "line 10, column 5: y is the other axis of a heat map"),
        ("    y: devices\n", "", "line 4, column 5: a heat map has two axes"),
        ("x: global_batch", "x: globalbatch", "line 9, column 8: unknown field of a figure 'globalbatch'; did"),
        ("x: global_batch", "x: workers_per_device", "line 9, column 8: which setting of ours is workers_per_device?"),
        ("energy]", "enrgy]", "line 8, column 27: unknown metric 'enrgy'; did you mean 'energy'?"),
        ("series: system", "series: sistem", "line 11, column 13: unknown field of a figure 'sistem'"),
        ("series: system", "colour: system", "'colour' has no meaning in a plot"),
        ("[fp16, bf16]", "[fp16, bf17]", "line 13, column 30"),
        ("caraml-sc24", "caraml", "unknown publication 'caraml'; did you mean 'caraml-sc24'?"),
        ("title: a plot", "note: a plot", "a plot has a title"),
        ("x: global_batch", "x: [global_batch, devices]", "x is a word, a number or a line of text"),
    ],
)  # fmt: skip
def test_a_wrong_plot_is_refused_where_it_stands(was: str, becomes: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_study(PLOT.replace(was, becomes, 1), "mine.yaml", StudyFileOptions(None), find_workload)
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine.yaml, line ")


@pytest.mark.parametrize("spec", [spec for name in NAMES for spec in load_study(name, None, (), find_workload).plots],
                         ids=lambda spec: spec.title)  # fmt: skip
def test_prony_can_measure_what_a_plot_shows(spec: PlotSpec) -> None:
    assert set(spec.metrics) <= set(MEASURES)


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        ("nasari-pearc22", "Table 4", "70,000 images in 4.9 s are 14,286 images/s"),
        ("olivia-gh200", "Tests 1 to 5", "about 25 million parameters, ours has 17.2 million"),
        ("caraml", "GPT of 800 million parameters over global batches: energy", "421 Wh, more than its limit of 400 W"),
        ("caraml", "ResNet-50 over global batches and devices: energy", "grows with the batch"),
        ("caraml", "ResNet-50 over global batches and devices: images/s", "one die (GCD) of two"),
        ("caraml", "GPT of 117 million", "a pipeline over four devices"),
    ],
)
def test_what_does_not_fit_in_a_publication_is_said_beside_its_table(name: str, title: str, said: str) -> None:
    (spec,) = [one for one in specs(name) if one.title.startswith(title)]
    assert said in spec.note


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_every_study_its_tables_and_how_many_figures_there_are(name: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "published-studies.md").read_text(encoding="utf-8")
    study = load_study(name, None, (), find_workload)
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    assert row.endswith(f"| {len(figures(next(spec.figures for spec in study.tables if spec.figures)))} |")
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert study.question in section
    for spec in study.tables:
        title, _, kind = spec.title.partition(": ")
        assert f"- {title}" in section
        assert kind.split(" and ")[0] in section
    for plot in study.plots:
        assert f"- {plot.title}" in section.split("\nPlots:\n")[1]


def test_the_sweeps_of_the_page_repeat_trials_of_the_study() -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "published-studies.md").read_text(encoding="utf-8")
    study = load_study("nasari-pearc22", "quick", (), find_workload)
    trials = {one.trial.hash for one in study.planned()}
    sweeps = [line.split(" --")[0].split()[2:] for line in page.splitlines() if line.startswith("prony sweep")]
    assert len(sweeps) == 2
    for workload, *words in sweeps:
        swept = study_of_words(find_workload(workload), words, study.parts[0].stop)
        assert {one.trial.hash for one in swept.planned()} <= trials, "such runs would count for nothing"
