"""Records and questions that were made to break a store: each is refused or read, and the others stay as they are."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.store import Store
from prony.store.archive import pack
from prony.store.query import StoreQuery, ask_records
from prony.store.transfer import ImportResult, copy_folders, take_record, take_records, take_tar
from prony_node.contract import RequestError, validate_record
from prony_node.contract.safe_files import open_plain

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def record(get_record: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return get_record("d00001")


def changed(record: dict[str, Any], name: str, edit: Edit) -> dict[str, Any]:
    found = copy.deepcopy(record) | {"id": name}
    edit(found)
    return found


def put(root: Path, record: dict[str, Any]) -> None:
    (root / record["id"]).mkdir(parents=True)
    (root / record["id"] / "record.json").write_text(json.dumps(record), encoding="utf-8")


UNUSABLE: dict[str, Edit] = {
    "is no finite number": lambda record: record["metrics"]["throughput"].update(value=10**400),
    "trial.settings.x is no finite number": lambda record: record["trial"]["settings"].update(x=10**400),
    "effective.batch_size is no finite": lambda record: record["trial"]["effective"].update(batch_size=10**400),
    "settings.x is no finite number up to": lambda record: record["trial"]["settings"].update(x=float("nan")),
    "has no 'trial.hash'": lambda record: record["trial"].pop("hash"),
    "the record has no 'trial.hash'": lambda record: record["trial"].update(hash=None),
    "facts.devices is not a list": lambda record: record["facts"].update(devices="none"),
}


@pytest.mark.parametrize("why", UNUSABLE)
def test_what_no_index_could_hold_is_neither_imported_nor_in_the_way(
    root: Path, record: dict[str, Any], why: str, tmp_path: Path
) -> None:
    bad = changed(record, "bad", UNUSABLE[why])
    done = take_records([json.dumps(bad)], root, "x.jsonl")
    assert (done.new, len(done.refused)) == ([], 1)
    put(tmp_path / "other", bad)
    with (tmp_path / "x.tar").open("wb") as file:
        pack([tmp_path / "other" / "bad"], file, compressed=False)
    with (tmp_path / "x.tar").open("rb") as file:
        done = take_tar(file, root, "x.tar")
    assert done.new == []
    with pytest.raises(RequestError, match=why):
        raise RequestError(done.refused[0].reason)
    assert not (root / "bad").exists()
    put(root, bad)  # somebody has copied it here
    store = Store(root)
    (skipped,) = store.refresh().skipped
    assert skipped.folder.name == "bad"
    assert len(ask_records(store, StoreQuery("effective.x=none asked.x=none", sort="asked.x")).rows) == 13


@pytest.mark.parametrize(
    "name", ["index.sqlite", "index.sqlite-wal", "anchors", "report.html", "report-me.html", "Index.SQLite"]
)
def test_no_run_takes_the_place_of_the_index(tmp_path: Path, record: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError, match="is no name for a run folder"):
        take_record(record | {"id": name}, tmp_path / "new", ImportResult())
    assert not (tmp_path / "new" / name).exists()


def test_odd_numbers_and_texts_do_not_spoil_what_is_asked(root: Path, record: dict[str, Any]) -> None:
    put(root, changed(record, "low", lambda one: one["metrics"]["throughput"].update(low=None)))
    put(root, changed(record, "repeat", lambda one: one.update(repeat=2**40)))
    put(root, changed(record, "half", lambda one: one["trial"]["settings"].update(x="\ud800\0", é="\u202e")))
    store = Store(root)
    assert store.refresh().skipped == []
    names = ("id", "throughput_low", "repeat", "asked.x")
    rows = {row[0]: row[1:] for row in ask_records(store, StoreQuery(columns=names)).rows}
    assert (rows["low"][0], rows["repeat"][1], rows["half"][2]) == (None, 0, "?\N{REPLACEMENT CHARACTER}")


def test_a_folder_whose_name_is_no_text_is_named_and_the_others_are_listed(root: Path) -> None:
    folder = os.fsencode(root) + b"/odd-\xff"
    shutil.copytree(os.fsencode(root / "resnet50-20260302T100000-d00001"), folder)
    begun = Path(os.fsdecode(os.fsencode(root) + b"/begun-\xff"))
    begun.mkdir()
    (begun / "plan.json").write_text("{}")
    done = CliRunner().invoke(make_app("runs"), ["runs", "--runs", str(root)])
    assert done.exit_code == 0, done.output
    assert "the name of its folder is not UTF-8: rename it" in done.stderr
    assert done.stdout.count("wideresnet-") == 7


@pytest.mark.parametrize(
    "verb", ["query device~\udcff", "query --sql SELECT'\udcff'", "show \udcff", "runs --limit 9" + "9" * 30]
)
def test_what_no_database_takes_is_a_sentence(root: Path, verb: str) -> None:
    words = verb.split()
    done = CliRunner().invoke(make_app(words[0]), [*words, "--runs", str(root)])
    assert isinstance(done.exception, (RequestError, SystemExit, type(None))), done.exception


def test_two_imports_of_the_same_runs_at_once_both_succeed(
    tmp_path: Path, record: dict[str, Any], replay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one puts the folder there between the look and the move."""
    source = replay / "resnet50-20260302T100000-d00001"
    archive = tmp_path / "x.tar"
    with archive.open("wb") as file:
        pack([source], file, compressed=False)
    for number, take in enumerate((lambda root: take_records([json.dumps(record)], root, "x"), None)):
        root = tmp_path / f"root{number}"
        looks: list[Path] = []

        def look(folder: Path, root: Path = root, looks: list[Path] = looks) -> Any:
            looks.append(folder)
            if len(looks) == 1:
                shutil.copytree(source, root / source.name)
                return None
            return validate_record(record)

        monkeypatch.setattr("prony.store.transfer._record_of", look)
        if take is not None:
            done = take(root)
        else:
            with archive.open("rb") as file:
                done = take_tar(file, root, "x.tar")
        assert (done.new, done.known, done.refused) == ([], [record["id"]], [])


def test_a_line_that_is_too_long_is_read_in_parts_and_refused_once(
    tmp_path: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prony.store.transfer.LONGEST_LINE", 100_000)
    monkeypatch.setattr("prony.store.tabular.LONGEST_CELL", 100_000)
    (tmp_path / "x.jsonl").write_text("9" * 250_000 + "\n" + json.dumps(record) + "\n" + "9" * 250_000)
    done = CliRunner().invoke(
        make_app("store"), ["store", "import", str(tmp_path / "x.jsonl"), "--runs", str(tmp_path / "r")]
    )
    assert "1 runs imported, 0 here already, 2 left out" in done.stdout, done.output
    assert "x.jsonl, line 3 is left out: the line is too long" in done.stderr


def test_an_export_names_the_record_that_is_no_json(root: Path, record: dict[str, Any], tmp_path: Path) -> None:
    put(root, changed(record, "nan", lambda one: one["facts"].update(x=float("inf"))))
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        words = ["store", "export", str(tmp_path / name), "--runs", str(root)]
        done = CliRunner().invoke(make_app("store"), words)
        assert "the record of nan holds a number that is none" in done.output
        assert not (tmp_path / name).exists()


def test_nothing_is_said_to_be_kept_where_nothing_can_be(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("workload,throughput\nresnet50,1000\n")
    words = ["store", "import", str(tmp_path / "a.csv"), "--as", "csv", "--source", "a paper"]
    words += ["--map", "throughput=value:throughput", "--runs", str(root)]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("prony.store.anchors.write_alone", full)
        done = CliRunner().invoke(make_app("store"), words)
        assert (done.exit_code, "is full" in done.output) == (2, True), done.output
    monkeypatch.setattr("prony.store.index.index_place", lambda root: None)
    done = CliRunner().invoke(make_app("store"), ["store", "rebuild", "--runs", str(root)])
    assert (done.exit_code, "cannot be written, so it has no index" in done.output) == (2, True), done.output


def test_a_folder_of_another_user_is_named_and_the_others_are_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path | str, *rest: Any, **options: Any) -> int:
        if Path(path).name == "resnet50-20260302T100000-d00001":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **options)

    real = os.open
    monkeypatch.setattr(os, "open", opened)
    done = Store(root).refresh()
    assert len(done.ingested) == 12
    assert [one.reason for one in done.skipped] == ["its record cannot be read: Permission denied"]


def test_a_link_to_itself_beside_the_runs_is_passed_over(root: Path) -> None:
    (root / "loop").symlink_to("loop")
    assert len(Store(root).refresh().ingested) == 13


def test_a_folder_of_any_name_is_exported_so_that_it_can_be_imported(root: Path, tmp_path: Path) -> None:
    """One folder that a person renamed would make a tar that is refused whole."""
    folders = sorted(path.parent for path in root.glob("*/record.json"))[:2]
    named = folders[0].rename(root / "-mïne (best)")
    with (tmp_path / "x.tar").open("wb") as file:
        pack([named, folders[1]], file, compressed=False)
    with (tmp_path / "x.tar").open("rb") as file:
        done = take_tar(file, tmp_path / "new", "x.tar")
    assert (done.refused, sorted(done.new)) == ([], sorted(folder.name for folder in folders))


def test_a_folder_that_cannot_be_read_is_left_out_of_a_push_by_name(root: Path, tmp_path: Path) -> None:
    folders = sorted(path.parent for path in root.glob("*/record.json"))[:2]

    def unreadable(path: Path, folder: int) -> int:
        if path.name == "record.json" and path.parent == folders[0]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_plain(path, folder=folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prony.store.archive.open_plain", unreadable)
        done = copy_folders(folders, tmp_path / "new")
    assert done.new == [folders[1].name]
    assert "cannot be read: Permission denied" in done.refused[0].reason


def test_the_index_lies_beside_the_runs_whatever_their_place_is_called(root: Path, tmp_path: Path) -> None:
    """As a URL a question mark would end the path: the index of several roots would be one file elsewhere."""
    place = root.rename(tmp_path / "which one?x=%41#1")
    assert len(Store(place).refresh().ingested) == 13
    assert (place / "index.sqlite").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
