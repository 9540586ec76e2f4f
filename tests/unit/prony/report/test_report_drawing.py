"""Without the extra `report`: a login node has the controller, and neither torch nor what draws plots.

If these fail, `pip install .` gives a program that ends in a traceback, or a report that is lost for want of its plots.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from documents import of_documents
from scaling_records import series

from prony.cli.run import write_report
from prony.engine.runs import RunOutcome
from prony.report import build_report
from prony.report.drawing import require_plots, why_no_plots
from prony_node.contract import read_record
from prony_node.contract.errors import RequestError
from prony_node.contract.record import parse_record

build_report = of_documents(build_report)

ROOT = Path(__file__).parents[4]
INSTALL = "pip install 'prony[report]'"
# What a plain install does not bring. Python asks the first finder, which says that it is not there.
BARE = """
import sys
ABSENT = {"altair", "vl_convert", "narwhals", "jsonschema", "torch", "numpy", "PIL", "torchvision", "timm",
          "transformers", "scipy", "pynvml", "psycopg", "pyarrow", "orjson", "kubernetes"}
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
PRONY = f"{BARE}\nimport prony\nfrom prony.__main__ import main\nmain()"


def run_bare(*words: str, code: str = PRONY, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = f"sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT / 'scripts')!r}]"
    argv = [sys.executable, "-c", f"import sys; {path}\n{code}", *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["--help"], "figures"), (["list", "workloads"], "resnet50"), (["runs", "--runs", "ROOT"], "wideresnet")],
    ids=lambda one: " ".join(one) if isinstance(one, list) else one,
)
def test_a_plain_install_lists_what_there_is(words: list[str], shown: str, root: Path) -> None:
    """One import at the top of the wrong file, and no verb works on a login node."""
    done = run_bare(*(str(root) if word == "ROOT" else word for word in words))
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_a_verb_that_only_draws_says_what_to_install(tmp_path: Path) -> None:
    """Without the check a user gets a traceback, after seconds, that names neither command nor extra."""
    done = run_bare("figures", "caraml", "--out", "here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (f"prony: plots need altair and vl-convert-python (No module named 'altair'): {INSTALL}\n")
    assert not (tmp_path / "here").exists()


def test_a_script_that_draws_says_so_before_it_works(tmp_path: Path) -> None:
    """Else it would unpack archives for minutes, rewrite the page, and fail at the first figure."""
    script = f"{BARE}\nimport studies_page\nsys.exit(studies_page.main())"
    done = run_bare("--figures", str(tmp_path / "figures"), code=script)
    assert done.returncode == 2
    assert done.stderr.endswith(f"{INSTALL}\n")


def test_a_report_keeps_its_tables_where_nothing_can_be_drawn(root: Path, tmp_path: Path) -> None:
    """Refusing it would cost a login node the page for want of its plots; leaving them out in silence would mislead."""
    done = run_bare("report", "--runs", str(root), "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert INSTALL in done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "This page was made without plots" in page
    assert "<svg" not in page
    assert "<figure" not in page, "a caption without its plot"
    assert '<table class="results">' in page
    run_bare("report", "--runs", str(root), "--out", "drawn.html", code=PRONY.replace(BARE, ""), cwd=tmp_path)
    drawn = (tmp_path / "drawn.html").read_text(encoding="utf-8")
    assert "<svg" in drawn
    assert "without plots" not in drawn
    assert page.count("<table") == drawn.count("<table")


def test_a_scaling_series_keeps_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)  # importing it raises
    text = build_report(series({1: 1.0, 2: 1.9, 4: 3.6}), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "resnet50, weak scaling: 64 samples per step and device" in text
    assert "<figure" not in text


def test_a_suite_ends_well_without_plots(
    replay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measuring is done by then: its records and its table must not end in a failure."""
    monkeypatch.setitem(sys.modules, "altair", None)  # importing it raises
    folder = next(replay.glob("*d00001"))
    record = read_record(folder)
    assert record is not None
    write_report([RunOutcome(folder, parse_record(record))], tmp_path)
    assert (tmp_path / "report.html").exists()
    said = capsys.readouterr().err
    assert "no report was made" not in said
    assert INSTALL in said


def test_with_the_extra_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_plots() is None
    require_plots()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(RequestError, match="vl-convert-python"):
        require_plots()
