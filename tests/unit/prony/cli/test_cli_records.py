"""What the verbs that read records print, held against tests/golden.

PRONY_GOLDEN=write renews those files; look at the difference before committing it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents
from rich.console import Console
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.cli.tables import print_record, print_repeats, results_table
from prony_node.contract import validate_record

print_record, print_repeats, results_table = map(of_documents, (print_record, print_repeats, results_table))

GOLDEN = Path(__file__).parents[3] / "golden"
GetRecord = Callable[[str], dict[str, Any]]
Call = Callable[..., Any]


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A verb with its words, on the synthetic runs."""
    monkeypatch.setenv("PRONY_RUNS", str(root))
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: str) -> Any:
        return CliRunner().invoke(make_app(words[0]), list(words))

    return run


def hold(name: str, text: str, root: Path | None = None) -> None:
    """The text must be the golden file's."""
    shown = "\n".join(line.rstrip() for line in text.replace(str(root), "RUNS").splitlines()) + "\n"
    path = GOLDEN / name
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path} differs; PRONY_GOLDEN=write renews it"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("show-good.txt", ["show", "d00001"]),
        ("show-failed.txt", ["show", "b00f07"]),
        ("show-interrupted.txt", ["show", "latest"]),
        ("runs.txt", ["runs"]),
        ("compare-one-setting.txt", ["compare", "a00203", "a00200"]),
        ("compare-repeats.txt", ["compare", "c00000,c00001,c00002", "d00001"]),
        ("compare-no-difference.txt", ["compare", "c00000", "c00001"]),
        ("compare-units.txt", ["compare", "e00001", "c00000"]),
    ],
)
def test_output_for_a_person(call: Call, root: Path, name: str, words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 0, result.stderr
    hold(name, result.stdout, root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("show-learned.txt", ["show", "f00002"]),
        ("show-not-reached.txt", ["show", "f00003"]),
        ("show-target-loss.txt", ["show", "f10000"]),
        ("runs-learned.txt", ["runs"]),
        ("compare-seeds.txt", ["compare", "f00000,f00001,f00002", "f00003"]),
        ("compare-quality.txt", ["compare", "f20000", "f20003"]),
    ],
)
def test_output_about_runs_that_learned(call: Call, learning_root: Path, name: str, words: list[str]) -> None:
    result = call(*words, "--runs", str(learning_root))
    assert result.exit_code == 0, result.stderr
    hold(name, result.stdout, learning_root)


def test_the_outcome_is_whole_in_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that the list says "chec…" where a rate is long."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("runs").stdout
    assert "checks warn" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 120])
def test_results_table_of_seeds(get_record: GetRecord, width: int) -> None:
    records = [get_record(f"f0000{seed}") for seed in range(4)]
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(results_table(records, width))
    print_repeats(console, records)
    hold(f"results-seeds-{width}.txt", console.file.getvalue())  # type: ignore[attr-defined]


def test_results_without_a_quality_have_no_column_for_it(get_record: GetRecord) -> None:
    titles = [column.header for column in results_table([get_record("a00200")], 200).columns]
    assert not {"quality", "time to"} & set(titles)
    titles = [column.header for column in results_table([get_record("f20000")], 200).columns]
    assert "quality" in titles
    assert "time to" not in titles  # no target was asked for


@pytest.mark.parametrize("learning", [{}, {"curve": [{}, {"epoch": None}]}, {"curve": [], "score": "[red]b[/red]"}])
def test_a_learning_of_which_little_is_left_is_shown(get_record: GetRecord, learning: dict[str, Any]) -> None:
    record = get_record("f00000") | {"learning": learning, "data": {"staged": {}, "generated": {"kind": "[b]"}}}
    console = Console(file=io.StringIO(), width=110, no_color=True)
    print_record(console, record, None)
    console.print(results_table([record, record], 200))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy 0.9382" in text
    assert "generated  kind [b]" in text
    assert ("[red]b[/red]" in text) == ("score" in learning)


@pytest.mark.parametrize("width", [80, 120])
def test_results_table(get_record: GetRecord, width: int) -> None:
    records = [get_record(end) for end in ("a00200", "a04002", "a00203", "b00f07", "e00001")]
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(results_table(records, width))
    hold(f"results-table-{width}.txt", console.file.getvalue())  # type: ignore[attr-defined]


def test_brackets_in_a_record_are_shown_not_obeyed(get_record: GetRecord) -> None:
    record = get_record("b00f07")
    record["failure"]["message"] = "[bold]tried[/bold] [/] to allocate"
    console = Console(file=io.StringIO(), width=110, no_color=True)
    print_record(console, record, None)
    console.print(results_table([record]))
    assert console.file.getvalue().count("[bold]tried[/bold] [/]") == 2  # type: ignore[attr-defined]


def test_show_json_is_the_record(call: Call, get_record: GetRecord) -> None:
    shown = json.loads(call("show", "d00001", "--json").stdout)
    added = shown["checks"].pop()
    assert (added["name"], added["level"]) == ("unchanged", "unknown"), "it is of before manifests"
    assert shown == validate_record(get_record("d00001"))


def test_runs_json_and_limit(call: Call) -> None:
    found = json.loads(call("runs", "--json", "--limit", "3").stdout)
    assert [run["status"] for run in found] == ["interrupted", "ok", "ok"]
    assert "the newest 3" in call("runs", "--limit", "3").stdout


def test_runs_of_another_place(call: Call, tmp_path: Path) -> None:
    for option in ("--runs", "--out"):
        assert "no runs in" in call("runs", option, str(tmp_path)).stdout


def test_there_are_no_runs_before_the_first_has_made_the_usual_root(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRONY_RUNS", str(tmp_path / "none"))
    result = call("runs")
    assert (result.exit_code, "no runs in" in result.stdout) == (0, True)


def test_skipped_folder_is_told_on_stderr(call: Call, root: Path) -> None:
    (root / "newer").mkdir()
    (root / "newer" / "record.json").write_text('{"schema": "prony.record/99"}', encoding="utf-8")
    result = call("runs", "--json")
    assert "newer Prony" in result.stderr
    assert len(json.loads(result.stdout)) == 13


def test_compare_json(call: Call) -> None:
    document = json.loads(call("compare", "a00203", "a00200", "--json").stdout)
    assert (document["verdict"], document["question"]) == ("faster", "precision")
    assert document["sentences"][0].startswith("B is 2.43x as fast as A (95 % CI ")
    same = json.loads(call("compare", "c00000", "c00001", "--json").stdout)
    assert same["verdict"] == "no difference shown"
    assert same["sentences"][0].startswith("No difference shown: ")


@pytest.mark.parametrize(
    ("a", "b", "status", "sentence"),
    [
        ("a00203", "a00200", 0, "B is not slower than A by more than 2 %"),
        ("a00200", "a00203", 1, "B is slower than A by more than 2 %"),
        ("c00000", "c00001", 3, "nothing can be concluded"),
        ("e00001", "c00000", 3, "nothing can be concluded"),  # not comparable
        ("a00200", "a01004", 3, "nothing can be concluded: confounded: batch_size and precision differ"),
    ],
)
def test_a_slowdown_is_told_by_the_exit_code(call: Call, a: str, b: str, status: int, sentence: str) -> None:
    for words in (["2%"], ["2 %"], ["0.02"], ["2%", "--json"]):
        result = call("compare", a, b, "--fail-if-slower", *words)
        assert result.exit_code == status, result.stderr
        assert sentence in result.stderr
    found = json.loads(result.stdout)["slowdown"]
    assert (found["threshold"], found["shown"]) == (0.02, {0: False, 1: True, 3: None}[status])
    assert f"prony: {found['sentence']}" in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compare", "c00000", "c00000"], "is on both sides"),
        (["compare", ",", "c00000"], "names no run"),
        (["compare", "c00000", "c00001", "--fail-if-slower", "two"], "such as 2% or 0.02, not 'two'"),
        (["compare", "c00000", "c00001", "--fail-if-slower", "200%"], "such as 2% or 0.02, not '200%'"),
        (["compare", "c00000", "c00001", "--fail-if-slower=-2%"], "such as 2% or 0.02, not '-2%'"),
        (["compare", "c00000,c00002", "c00001", "--paired"], "as many runs on both sides, got 2 and 1"),
        (["show", "resnet50"], "stands for 4 runs"),
        (["show", "nothing-like-it-at-all"], "no run"),
        (["list", "workload"], "did you mean 'workloads'"),
        (["report", "--runs", "/nonexistent"], "there is no folder /nonexistent"),
        (["runs", "--runs", "/nonexistent"], "there is no folder /nonexistent"),
        (["runs", "--out", "/nonexistent"], "there is no folder /nonexistent"),
        (["query", "--runs", "/nonexistent"], "there is no folder /nonexistent"),
        (["verify", "/nonexistent"], "there is no file or folder /nonexistent"),
        (["report", "d00001", "--out", "/nonexistent/x.html"], "is not a folder"),
        (["report", "d00001", "--out", "/"], "it is a folder, and a report is a file"),
    ],
)
def test_mistakes_are_sentences_and_exit_2(call: Call, words: list[str], sentence: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_report_of_chosen_and_of_all_runs(call: Call, root: Path, tmp_path: Path) -> None:
    one = call("report", "c00000,c00001", "d00001", "--out", str(tmp_path / "three.html"))
    assert one.exit_code == 0, one.stderr
    assert "3 runs" in (tmp_path / "three.html").read_text(encoding="utf-8")
    assert call("report").exit_code == 0
    assert "13 runs" in (root / "report.html").read_text(encoding="utf-8")


def test_list_names_everything_there_is(call: Call) -> None:
    for what, name in (("workloads", "gpt-800m"), ("settings", "image_size"), ("suites", "quick")):
        assert name in call("list", what).stdout
        assert name in {entry["name"] for entry in json.loads(call("list", what, "--json").stdout)}


def test_a_record_with_a_value_that_is_gone_is_read_shown_and_compared(call: Call, root: Path) -> None:
    """`attention=measured` was one: the run is still found, with what its record kept of it."""
    (path,) = root.glob("*e00001/record.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    for settings in ("settings", "effective"):
        record["trial"][settings]["attention"] = "measured"
    record["attention"] = {"order": ["flash", "cudnn", "efficient"], "timed": []}
    path.write_text(json.dumps(record), encoding="utf-8")
    assert validate_record(record)["attention"] == record["attention"]
    for words, said in (
        (["show", "e00001"], "attention=measured"),
        (["query", "effective.attention=measured"], "e00001"),
        (["compare", "e00001", "e00002"], "measured"),
    ):
        result = call(*words)
        assert result.exit_code == 0, result.stderr
        assert said in result.stdout
