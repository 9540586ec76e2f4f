"""`prony figures`: files in one folder, whole, named safely, and a clear word where there is nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents
from typer.testing import CliRunner, Result

import prony.engine.history
import prony.engine.possible
import prony.engine.published
import prony.report.published_plots
from prony.cli.figures import file_names
from prony.cli.main import make_app
from prony.engine.published import published_of_records
from prony.report.build import report_text
from prony.study.study_file import load_study
from prony_node.contract import files
from prony_node.workloads import find_workload

published_of_records, report_text = map(of_documents, (published_of_records, report_text))

GetRecord = Callable[[str], dict[str, Any]]
STUDY = """
workloads: resnet50
settings: {devices: [1, 2]}
plots:
  - title: "%s"
    figures: nasari-pearc22
    where: {place: Table 3, batch_per_device: 20}
    x: devices
    match: {devices: devices}
"""


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine: one GPU."""
    answers = {
        "fingerprint": {"machine": "here", "software": "s"},
        "devices": {"kind": "cuda", "devices": ["NVIDIA H200"]},
    }
    for module in (prony.engine.history, prony.engine.possible, prony.engine.published):
        monkeypatch.setattr(module, "ask_node", lambda what, *_, **__: answers[what])


@pytest.fixture
def ours(tmp_path: Path, get_record: GetRecord) -> dict[str, Any]:
    """A run of caraml's ResNet-50 on one device, in the folder `runs`."""
    study = load_study("caraml", "quick", (), find_workload)
    wished = {"devices": 1, "global_batch": 256}
    (trial,) = [
        one.trial for one in study.planned()
        if one.trial.workload == "resnet50" and wished.items() <= one.trial.settings.items()
    ]  # fmt: skip
    record = get_record("d00001")
    record["trial"] |= {**trial.to_json(), "effective": {"batch_size": 256, **trial.settings}}
    record |= {"study": {"name": "caraml", "part": "resnet"}, "fingerprint": {"machine": "here", "software": "s"}}
    folder = tmp_path / "runs" / str(record["id"])
    folder.mkdir(parents=True)
    (folder / files.RECORD).write_text(json.dumps(record))
    return record


def draw(*words: str) -> Result:
    return CliRunner().invoke(make_app("figures"), ["figures", *words], catch_exceptions=False)


def test_a_title_too_long_is_refused_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY % ("x" * 300))
    done = draw(str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "figures"))
    assert done.exit_code == 2
    assert "mine.yaml" in done.stderr
    assert "a title has at most 200 characters, and this one has 300" in done.stderr


def test_one_part_of_a_study_can_be_drawn(tmp_path: Path, ours: dict[str, Any]) -> None:
    runs, out = tmp_path / "runs", tmp_path / "figures"
    done = draw("caraml", "--part", "resnet", "--runs", str(runs), "--out", str(out), "--format", "json")
    assert done.exit_code == 0
    wrong = draw("caraml", "--part", "resnett", "--runs", str(runs))
    assert (wrong.exit_code, "did you mean 'resnet'" in wrong.stderr) == (2, True)


def test_each_plot_is_a_file_with_its_caption(tmp_path: Path, ours: dict[str, Any]) -> None:
    out = tmp_path / "new" / "figures"
    done = draw("caraml", "--size", "quick", "--runs", str(tmp_path / "runs"), "--out", str(out), "--format", "json")
    assert done.exit_code == 0
    written = sorted(path.name for path in out.iterdir())
    assert len(written) == 2 * len(load_study("caraml", None, (), find_workload).plots)
    assert all(str(out / name) in done.stdout for name in written)
    assert "drawing 1 of" in done.stderr
    caption = (out / "caraml-resnet-50-on-one-device-over-global-batches.txt").read_text(encoding="utf-8")
    assert "In colour: ours, on NVIDIA" in caption
    assert "arXiv:2409.12994" in caption
    document = json.loads((out / "caraml-resnet-50-on-one-device-over-global-batches.json").read_text(encoding="utf-8"))
    assert "ours" in json.dumps(document["concat"][0])


def test_without_runs_the_published_series_are_drawn_alone(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    done = draw("hurt-nrp", "--runs", str(runs), "--out", str(out), "--format", "json")
    assert done.exit_code == 0
    assert "the published series are drawn alone" in done.stdout
    assert "not drawn, since it has no published numbers and no runs: Fig. 2: inference of two models" in done.stdout
    assert not any("fig-2" in path.name for path in out.iterdir())
    assert (
        "There are no runs of ours"
        in (out / "hurt-nrp-table-ii-training-time-of-two-detectors-and-two-segmenters.txt").read_text()
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["caraml", "--format", "pfd"], "unknown format 'pfd'; did you mean 'pdf'?"),
        (["carmal"], "unknown study 'carmal'; did you mean 'caraml'?"),
        (["caraml", "--runs", "nowhere"], "there is no folder nowhere"),
        (["caraml", "--out", __file__], "is no folder, so no figures can be written there"),
    ],
)
def test_a_wrong_word_is_answered_before_anything_is_drawn(words: list[str], sentence: str) -> None:
    refused = draw(*words)
    assert refused.exit_code == 2
    assert sentence in refused.output


def test_a_study_without_plots_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("workloads: resnet50\n")
    refused = draw(str(tmp_path / "mine.yaml"))
    assert refused.exit_code == 2
    assert "mine has no plots of a publication" in refused.output


@pytest.mark.parametrize("title", ["../../escaped", "/etc/passwd", "a/b\\\\c", "..", "ü 漢", "x" * 200])
def test_no_title_leads_out_of_the_folder(tmp_path: Path, title: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine.yaml").write_text(STUDY % title, encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["--runs", str(tmp_path / "runs"), "--out", str(out), "--format", "json"]
    assert draw(str(tmp_path / "mine.yaml"), *arguments).exit_code == 0
    assert len([path for path in tmp_path.rglob("*") if path.suffix in (".json", ".txt")]) == 2
    assert len(list(out.iterdir())) == 2


def test_alike_titles_have_names_of_their_own() -> None:
    names = file_names(["A plot", "a: plot", "a plot!", "", "a plot 2", "b 2", "b", "b"], "mine")
    assert len(set(names)) == len(names)
    assert names[:2] == ["mine-a-plot", "mine-a-plot-2"]


def test_a_plot_that_cannot_be_drawn_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half of a set nor half of a file."""
    (tmp_path / "runs").mkdir()
    drawn = []

    def fail(captioned: object, _: str) -> bytes:
        drawn.append(captioned)
        if len(drawn) == 2:
            raise OSError(28, "No space left on device")
        return b"{}"

    monkeypatch.setattr(prony.report.published_plots, "plot_file", fail)
    assert draw("caraml", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")).exit_code == 1
    assert not (tmp_path / "out").exists()


def test_a_report_draws_the_plots_that_its_runs_are_in(ours: dict[str, Any]) -> None:
    beside = published_of_records([ours])
    assert [one.plot.spec.title for one in beside.plots] == [
        "ResNet-50 on one device over global batches", "ResNet-50 over global batches and devices",
    ]  # fmt: skip
    section = report_text([ours], beside.tables, beside.plots).split('id="published"')[1].split("</section>")[0]
    assert section.count("<figure>") == section.count("<svg") == 2
    assert "<strong>ResNet-50 on one device over global batches.</strong>" in section
    assert "In colour: ours, on NVIDIA" in section
