"""Records that no run gives: refused or marked wherever they are shown, ranked or handed on, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import csv
import html
import io
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from prony.analysis.compare import compare
from prony.cli.console import make_console
from prony.cli.main import make_app
from prony.cli.tables import print_record
from prony.engine.history import stored_repeats
from prony.report import plots
from prony.report.build import ReportEntry, page_of
from prony.store import Store
from prony.store.rows import UNREADABLE, row_of_record
from prony.store.tables import detail_table, run_table
from prony.store.tabular import cell, without_mark
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import PLAUSIBLE, accept_record, parse_record, using, validate_record
from prony_node.contract.run_folder import MANIFEST_ALONE, NO, SUPERVISOR, UNVERIFIED, YES, write_manifest

REPLAY = Path(__file__).parents[1] / "replay" / "records"
GOOD = "resnet50-20260302T090000-c00000"
OTHER = "resnet50-20260302T090100-c00001"
Record = dict[str, Any]


def prony(root: Path, *words: str) -> Result:
    """A verb as a person calls it. An exception that nobody turned into a sentence is a traceback."""
    done = CliRunner().invoke(make_app(words[0]), [*words, "--runs", str(root)], env={"COLUMNS": "140"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def read(name: str) -> Record:
    record: Record = json.loads((REPLAY / name / files.RECORD).read_text())
    return record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two run folders."""
    for name in (GOOD, OTHER):
        shutil.copytree(REPLAY / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def edit(root: Path, change: Callable[[Record], None], name: str = GOOD) -> None:
    path = root / name / files.RECORD
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def negative_rate(record: Record) -> None:
    record["metrics"]["throughput"] |= {"value": -5.0, "low": -6.0, "high": -4.0}


def interval_reversed(record: Record) -> None:
    rate = record["metrics"]["throughput"]
    rate["low"], rate["high"] = rate["value"] * 1.1, rate["value"] * 0.9


def ended_before_it_started(record: Record) -> None:
    record["ended"] = "2001-01-01T00:00:00+00:00"


def no_time(record: Record) -> None:
    record["started"] = "yesterday"


@pytest.mark.parametrize("change", [negative_rate, interval_reversed, ended_before_it_started, no_time])
def test_a_record_that_cannot_be_true_fails_a_check_wherever_it_is_shown(
    root: Path, change: Callable[[Record], None]
) -> None:
    edit(root, change)
    marked = validate_record(json.loads((root / GOOD / files.RECORD).read_text()))
    assert [check["level"] for check in marked["checks"] if check["name"] == PLAUSIBLE] == ["fail"]
    assert "cannot be true" in prony(root, "show", GOOD).output
    prony(root, "compare", GOOD, OTHER)
    prony(root, "report")
    assert {run.folder.name: run.worst for run in Store(root).runs()}[GOOD] == "fail"
    assert "checks fail" in prony(root, "runs").output
    assert validate_record(marked) == marked, "it is marked once"


DEEP: list[Callable[[Record], object]] = [
    lambda r: r.update(energy={"parts": "x"}),
    lambda r: r.update(energy={"parts": [{"sensor": 3, "energy_j": "x", "node": "?"}], "nodes": [{"energy_j": []}]}),
    lambda r: r.update(learning={"points": "x", "score": 3}),
    lambda r: r.update(data={"kind": []}),
    lambda r: r.update(parallel={"ranks": "x", "window_s": "long"}),
    lambda r: r.update(collective={"sizes": 3}),
    lambda r: r.update(auto_batch="x", binding=[3]),
    lambda r: r["facts"].update(devices=[{"name": {"a": 1}, "memory_bytes": "x"}]),
    lambda r: r["facts"].update(host={"cpu": 3, "missing": "x"}),
    lambda r: r["facts"].update(software=[]),
    lambda r: r["phases"].update(warm={"seconds": "x"}),
    lambda r: r["steady"].update(level_values_s=["x"]),
    lambda r: r["trial"].update(settings={"batch_size": {"a": 1}}),
    lambda r: r["metrics"].update(throughput={"value": "fast", "unit": 3}),
    lambda r: r.update(study={"name": [], "turn": "x"}),
    lambda r: r["checks"].append({"name": "x", "level": "splendid"}),
    lambda r: r.update(started=3),
    lambda r: r["fingerprint"].update(parts={"torch": []}),
    lambda r: r["work"].update(shapes={"x": 3}, devices=10**30),
]


@pytest.mark.parametrize("number", range(len(DEEP)))
def test_a_part_of_another_kind_deep_inside_ends_as_a_sentence(root: Path, tmp_path: Path, number: int) -> None:
    edit(root, DEEP[number])  # type: ignore[arg-type]
    for words in (
        ["runs"], ["show", GOOD], ["compare", GOOD, OTHER], ["query"], ["query", "--format", "csv"], ["report"],
        ["verify", str(root / GOOD)], ["store", "export", str(tmp_path / "x.csv")],
        ["store", "export", str(tmp_path / "x.jsonl")], ["store", "export", str(tmp_path / "x.tar")],
        ["store", "rebuild"],
    ):  # fmt: skip
        prony(root, *words)
    there = tmp_path / "there"
    if (tmp_path / "x.tar").exists():
        prony(there, "store", "import", str(tmp_path / "x.tar"))
        prony(there, "runs")


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, own in items:
        found += places(own, (*path, name))
    return found


RECORD = read(GOOD)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just([[]]), st.just({"": None}), st.just(-1), st.just("-1"), st.just(10**400), st.just([None]),
)  # fmt: skip


def uses(document: Record) -> list[Callable[[], object]]:
    """What makes figures from a record."""
    record = parse_record(document)
    return [
        lambda: print_record(make_console(), record, Path("/nowhere")),
        lambda: compare([record], [parse_record(read(OTHER))], []),
        lambda: page_of([ReportEntry(record, None)]),
    ]


def test_figures_of_a_good_record_raise_nothing() -> None:
    """Otherwise the next test would take a mistake in its calls for a record's."""
    for use in uses(validate_record(read(GOOD))):
        use()


@pytest.mark.parametrize("error", [AssertionError, RuntimeError, NameError, MemoryError, OSError, ImportError])
def test_a_fault_of_prony_is_not_blamed_on_a_record(error: type[Exception]) -> None:
    with pytest.raises(error), using("x"):
        raise error
    with pytest.raises(RequestError, match="not what Prony writes"), using("x"):
        raise KeyError("throughput")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(places(RECORD)), ANYTHING), min_size=1, max_size=3))
def test_a_record_that_was_changed_anywhere_never_gives_a_traceback(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Whatever is no sentence here fails: `using` lets every error pass but what a value of another kind gives."""
    record = copy.deepcopy(RECORD)
    for path, value in changes:
        inner = record
        try:
            for name in path[:-1]:
                inner = inner[name]
            inner[path[-1]] = value
        except (LookupError, TypeError):
            continue  # another change took its place away
    try:
        record = validate_record(record)
        row_of_record("x", parse_record(record))
    except RequestError:
        return
    except UNREADABLE:  # what a scan skips and reports
        return
    for use in uses(record):
        with contextlib.suppress(RequestError), using("x"):
            use()


@given(st.recursive(ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)))
def test_no_document_breaks_the_reader_of_records(document: Any) -> None:
    try:
        validate_record(document)
    except RequestError:
        return


def test_verify_says_what_was_measured_where_a_record_was_edited(tmp_path: Path) -> None:
    archive = Path(__file__).parents[2] / "results/h200/headline-20261118b.tar.gz"
    prony(tmp_path, "store", "import", str(archive))
    run = next(run for run in _refreshed(tmp_path) if run.rate)
    assert run.verified != "no"
    edit(tmp_path, lambda record: record["metrics"]["throughput"].update(value=2 * run.rate), run.id)
    (again,) = [one for one in _refreshed(tmp_path) if one.id == run.id]
    assert (again.rate, again.verified) == (2 * run.rate, "no")
    done = prony(tmp_path, "verify", run.id)
    assert done.exit_code == 1
    assert "record.json was changed after the run" in done.output
    assert "recomputed it is" in done.output
    assert "does not verify" in prony(tmp_path, "runs").output


def test_the_list_and_the_record_agree_after_an_edit(root: Path) -> None:
    before = {run.id: run.rate for run in _refreshed(root)}
    path = root / GOOD / files.RECORD
    text = path.read_text()
    status = path.stat()
    edit(root, lambda record: record["metrics"]["throughput"].update(value=123456.0, low=123450.0, high=123460.0))
    assert {run.id: run.rate for run in _refreshed(root)}[GOOD] == 123456.0
    assert "123" in prony(root, "show", GOOD).output
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert {run.id: run.rate for run in _refreshed(root)} == before


def test_a_record_that_was_broken_after_it_was_indexed_is_not_listed(root: Path) -> None:
    assert len(_refreshed(root)) == 2
    (root / GOOD / files.RECORD).write_text("{")
    assert [run.id for run in _refreshed(root)] == [OTHER]
    (root / OTHER / files.RECORD).unlink()
    assert _refreshed(root) == []


def no_hash(record: Record) -> None:
    record["trial"]["hash"] = None


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "indexed before"])
def test_a_record_without_what_every_row_has_is_passed_over_and_named(root: Path, is_known: bool) -> None:
    """It blocked the whole root: `index.sqlite: NOT NULL constraint failed: run.trial_hash`."""
    if is_known:
        assert len(_refreshed(root)) == 2
    edit(root, no_hash)
    write_manifest(root / GOOD, SUPERVISOR)
    for verb in ("runs", "report"):
        done = prony(root, verb)
        assert done.exit_code == 0, done.output
        assert f"{GOOD} is left out: the record has no 'trial.hash'" in done.output
    assert [run.id for run in _refreshed(root)] == [OTHER]
    Store(root).rebuild()
    assert [run.id for run in Store(root).runs()] == [OTHER]


@pytest.mark.parametrize("is_gone", [False, True], ids=["null", "gone"])
def test_no_value_that_a_record_lacks_gives_a_row_that_the_index_refuses(is_gone: bool) -> None:
    tables = ((run_table, "run"), (detail_table, "detail"))
    needed = [(part, column.name) for table, part in tables for column in table.columns if not column.nullable]
    given = 0
    for path in places(RECORD):
        record = copy.deepcopy(RECORD)
        inner = record
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = None
        if is_gone:
            del inner[path[-1]]
        try:
            row = row_of_record("x", accept_record(record))
        except UNREADABLE:  # what a scan skips and reports
            continue
        given += 1
        assert [name for part, name in needed if getattr(row, part)[name] is None] == [], path
    assert given > 50, "most values are not needed"


def _refreshed(root: Path) -> list[Any]:
    store = Store(root)
    store.refresh()
    return store.runs()


FORMULAS = ["=cmd|' /C calc'!A0", "+1+cmd|x", "-2+3+cmd|x", "@SUM(A1)", "\t=1", "\r=1", " =1", '=HYPERLINK("http://x")']


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_a_spreadsheet_would_compute_is_marked_in_every_csv(root: Path, tmp_path: Path, text: str) -> None:
    edit(root, lambda record: record["facts"]["devices"][0].update(name=text))
    edit(root, lambda record: record.update(failure={"kind": "exception", "message": text}, status="failed"))
    shown = prony(root, "query", "--format", "csv", "--columns", "id,device,message,throughput").output
    prony(root, "store", "export", str(tmp_path / "x.csv"))
    for table in (shown, (tmp_path / "x.csv").read_bytes().decode()):
        rows = list(csv.reader(io.StringIO(table, newline="")))
        cells = [own for row in rows for own in row]
        assert any(text.strip() in own for own in cells)
        assert not [own for own in cells if own.lstrip(" ")[:1] in tuple("=+@\t\r")]
    there = tmp_path / "there"
    prony(there, "store", "import", str(tmp_path / "x.csv"))
    back = json.loads((there / GOOD / files.RECORD).read_text())
    assert back["facts"]["devices"][0]["name"] == back["failure"]["message"] == text, "and comes back without the mark"


def test_numbers_stay_numbers_and_a_mark_comes_off_again() -> None:
    assert [cell(value) for value in (-1.5, 3, None, "-1.5", "+3", "1e-3", "text", "it's")] == [
        -1.5, 3, None, "-1.5", "+3", "1e-3", "text", "it's",
    ]  # fmt: skip
    for text in (*FORMULAS, "'=x", "plain", "'quoted"):
        assert without_mark(str(cell(text))) == text


def test_a_record_with_texts_without_end_does_not_fill_the_index() -> None:
    """Thousands of rows are in memory at once while an index is made."""
    record = read(GOOD)
    record["failure"], record["status"] = {"kind": "exception", "message": "x" * 10**7}, "failed"
    assert len(row_of_record("x", accept_record(record)).detail["failure_message"]) < 10**5
    record["trial"]["settings"] |= {f"name{number}": number for number in range(50_000)}
    with pytest.raises(RequestError, match="more than"):
        row_of_record("x", accept_record(record))


@pytest.fixture
def with_manifests(root: Path) -> Path:
    """Both runs as their supervisors leave them: a change shows."""
    for name in (GOOD, OTHER):
        write_manifest(root / name, SUPERVISOR)
    return root


def double(record: Record) -> None:
    rate = record["metrics"]["throughput"]
    rate |= {name: 2 * rate[name] for name in ("value", "low", "high")}


NO_GOOD = {"facts": {"host": {"cpu": 3}}}


def changed(root: Path) -> str:
    return f"changed after the run: `prony verify {root / GOOD}` says where"


def words_of(text: str) -> str:
    """A text as it reads, wherever its lines end."""
    return " ".join(text.split())


def test_the_first_lines_of_show_say_that_a_record_was_edited(with_manifests: Path) -> None:
    assert "changed after" not in prony(with_manifests, "show", GOOD).output
    edit(with_manifests, double)
    for run in (GOOD, str(with_manifests / GOOD)):
        first = prony(with_manifests, "show", run).output.splitlines()[:4]
        assert changed(with_manifests) in words_of(" ".join(first))
        assert "checks: fail (unchanged)" in first[3]


@pytest.mark.parametrize(
    "words", [("show", GOOD), ("compare", OTHER, GOOD), ("store", "rebuild"), ("store", "rebuild", "--quick")]
)
def test_the_command_that_is_named_works_as_it_stands(
    with_manifests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """It lacked --runs, or the run."""
    root = with_manifests.rename(tmp_path / "my runs")
    edit(root, double)
    commands = re.findall(r"`prony (verify[^`]*)`", words_of(prony(root, *words).output))
    assert commands
    monkeypatch.chdir(tmp_path)
    for command in commands:
        done = CliRunner().invoke(make_app("verify"), shlex.split(command))
        assert "NOT VERIFIED" in done.output, (command, done.output)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_query_says_which_of_its_runs_do_not_verify(with_manifests: Path, form: str) -> None:
    words = ("query", "devices>0", "--columns", "throughput", "--format", form)
    assert not prony(with_manifests, *words).stderr
    edit(with_manifests, double)
    said = prony(with_manifests, *words)
    assert said.stderr == f"prony: 1 of these runs does not verify: `prony verify {GOOD}` says where\n"
    assert "verified" not in said.stdout, "the columns are those that were asked for"
    assert not prony(with_manifests, "query", "--sql", "select rate from run").stderr
    assert not prony(with_manifests, *words, "--limit", "1", "--sort", "throughput", "--reverse").stderr.count("verify")


def test_compare_concludes_nothing_from_a_record_that_was_edited(with_manifests: Path) -> None:
    assert "changed after" not in prony(with_manifests, "compare", GOOD, OTHER).output
    edit(with_manifests, double)
    said = prony(with_manifests, "compare", OTHER, GOOD)
    assert "No conclusion" in said.output
    assert f"but {GOOD} was {changed(with_manifests)}" in words_of(said.output)
    found = json.loads(prony(with_manifests, "compare", OTHER, GOOD, "--json").output)
    assert (found["verdict"], found["ratio_low"]) == ("no interval", None)
    assert any(changed(with_manifests) in doubt for doubt in found["doubts"])
    assert prony(with_manifests, "compare", OTHER, GOOD, "--fail-if-slower", "2%").exit_code == 3


def test_a_report_says_that_a_record_was_edited_without_the_place_of_its_folder(with_manifests: Path) -> None:
    """It is handed on, and others have no such folder."""
    edit(with_manifests, double)
    prony(with_manifests, "report")
    page = html.unescape((with_manifests / "report.html").read_text())
    assert f"changed after the run: `prony verify {GOOD}` says where" in page
    assert str(with_manifests) not in page


def test_show_and_compare_know_what_an_earlier_verification_found(with_manifests: Path) -> None:
    """Whoever writes a new manifest too is found by recomputing alone, which no list does."""
    store = Store(with_manifests)
    store.refresh()
    store.mark({GOOD: NO})
    store.close()
    assert changed(with_manifests) in words_of(prony(with_manifests, "show", GOOD).output)
    assert changed(with_manifests) in words_of(prony(with_manifests, "show", str(with_manifests / GOOD)).output)
    assert changed(with_manifests) in words_of(prony(with_manifests, "compare", GOOD, OTHER).output)


def test_the_variation_between_runs_is_not_taken_from_an_edited_record(with_manifests: Path) -> None:
    edit(with_manifests, double)
    assert [run.id for run in _refreshed(with_manifests)] == [OTHER, GOOD]
    assert [repeat.id for repeat in stored_repeats(Store(with_manifests), [parse_record(read(GOOD))])] == [OTHER]


@pytest.mark.parametrize("change", [negative_rate, interval_reversed])
def test_a_rate_that_cannot_be_true_is_not_called_unmeasured(root: Path, change: Callable[[Record], None]) -> None:
    edit(root, change)
    shown, listed = prony(root, "show", GOOD).output, prony(root, "runs").output
    compared = words_of(prony(root, "compare", GOOD, OTHER).output)
    assert "no rate: the one in the record cannot be true (check plausible)" in shown.splitlines()[1]
    assert "cannot be true" in next(line for line in listed.splitlines() if GOOD in line)
    assert f"the rate of {GOOD} cannot be true (check plausible)" in compared
    assert "not measured" not in compared


def test_a_quick_rebuild_keeps_what_did_not_verify_and_says_what_it_left_open(with_manifests: Path) -> None:
    store = Store(with_manifests)
    store.refresh()
    store.mark({GOOD: NO})
    store.close()
    said = prony(with_manifests, "store", "rebuild", "--quick").output
    assert "1 runs were not verified beyond their manifests: leave out --quick" in said
    assert "1 runs do not agree with their files" in said
    assert {run.id: run.verified for run in _refreshed(with_manifests)} == {GOOD: NO, OTHER: MANIFEST_ALONE}
    path = with_manifests / GOOD / files.RECORD
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert {run.id: run.verified for run in _refreshed(with_manifests)}[GOOD] == MANIFEST_ALONE, "another file"


def test_a_run_without_a_manifest_is_not_wrong_after_a_whole_rebuild(root: Path) -> None:
    store = Store(root)
    store.refresh()
    store.mark({GOOD: NO})
    store.close()
    prony(root, "store", "rebuild")
    assert {run.verified for run in _refreshed(root)} == {UNVERIFIED}


def test_verify_corrects_what_the_list_says(tmp_path: Path) -> None:
    archive = Path(__file__).parents[2] / "results/h200/headline-20261118b.tar.gz"
    prony(tmp_path, "store", "import", str(archive))
    run = _refreshed(tmp_path)[0]
    store = Store(tmp_path)
    store.mark({run.folder.name: NO})
    store.close()
    assert prony(tmp_path, "verify", run.id).exit_code == 0
    assert _refreshed(tmp_path)[0].verified == YES


def test_a_report_draws_each_run_once_where_some_records_are_no_good(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run was reported on alone, to see whether it can be, and then again with the others: 192 took a minute."""
    for number in range(3):
        name = f"resnet50-20260302T09020{number}-d0000{number}"
        shutil.copytree(REPLAY / GOOD, root / name)
        edit(root, lambda record, name=name: record.update(id=name, **NO_GOOD), name)  # type: ignore[misc]
    drawn: list[object] = []
    convert = plots.vl_convert.vegalite_to_svg
    monkeypatch.setattr(plots.vl_convert, "vegalite_to_svg", lambda spec: (drawn.append(spec), convert(spec))[1])
    said = prony(root, "report").output
    assert said.count(" is left out: the record's facts.host.cpu is not an object") == 3
    assert len(drawn) <= 2, "one plot of each run that is any good"


def test_a_record_whose_manifest_was_removed_does_not_verify(root: Path) -> None:
    """Else whoever edits a record removes its manifest too, and is believed."""
    for name in (GOOD, OTHER):
        today = validate_record(read(name))
        (root / name / files.RECORD).write_text(json.dumps(today))
        write_manifest(root / name, SUPERVISOR)
    assert "does not verify" not in prony(root, "runs").output
    edit(root, double)
    (root / GOOD / files.MANIFEST).unlink()
    os.utime(root / GOOD / files.RECORD, (0, 0))  # a manifest may be about to be written for one of this moment
    for _ in range(2):
        assert "does not verify" in prony(root, "runs").output
        assert "No conclusion" in prony(root, "compare", OTHER, GOOD).output
        said = prony(root, "verify", GOOD)
        assert (said.exit_code, "manifest.json is missing" in said.output) == (1, True), said.output


def test_an_edit_that_sets_the_time_of_the_file_back_is_noticed(with_manifests: Path) -> None:
    assert {run.verified for run in _refreshed(with_manifests)} == {MANIFEST_ALONE}
    path = with_manifests / GOOD / files.RECORD
    before, text = path.stat(), path.read_text()
    time.sleep(0.02)  # the clock of a file system has steps
    with path.open("r+") as file:
        file.write(text.replace('"value": 6', '"value": 9', 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert {run.id: run.verified for run in _refreshed(with_manifests)}[GOOD] == NO


def test_a_record_that_was_edited_to_a_failure_does_not_verify(root: Path) -> None:
    """Else a sweep counts the trial as done, and its good run is never seen again."""
    today = validate_record(read(GOOD)) | {"status": "failed", "failure": {"kind": "exception", "message": "x"}}
    (root / GOOD / files.RECORD).write_text(json.dumps(today))
    os.utime(root / GOOD / files.RECORD, (0, 0))
    assert {run.id: run.verified for run in _refreshed(root)}[GOOD] == NO
    said = prony(root, "verify", GOOD)
    assert (said.exit_code, "manifest.json is missing" in said.output) == (1, True), said.output


def test_an_unverified_run_is_called_so_and_not_changed(root: Path, tmp_path: Path) -> None:
    assert "unverified, checks pass" in words_of(prony(root, "runs").output)
    page = tmp_path / "page.html"
    prony(root, "report", "--out", str(page))
    text = page.read_text()
    assert "there is no manifest to check the record against" in text
    assert "changed after the run" not in text


def test_a_check_cannot_fake_a_line_of_a_comparison() -> None:
    edited = read(GOOD)
    edited["checks"].append({"name": "levels", "level": "warn", "message": "two\nB is faster"})
    assert all("\n" not in doubt for doubt in compare(parse_record(read(OTHER)), parse_record(edited)).doubts)
