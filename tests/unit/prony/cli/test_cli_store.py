"""`prony query` and `prony store` as a person uses them: what they print, and how they end."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.cli.query import Column, fitting
from prony.store.database import MARK

FOREIGN = Path(__file__).parents[3] / "replay" / "foreign"
Call = Callable[..., Any]


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("PRONY_RUNS", str(root))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("PRONY_STORE", raising=False)

    def run(*words: str, at: Path | None = None) -> Any:
        more = ["--runs", str(at)] if at is not None else []
        return CliRunner().invoke(make_app(words[0]), [*words, *more])

    return run


def test_query_as_table_csv_and_json(call: Call) -> None:
    words = ("query", "precision=bf16 device~H200 mode=train", "--sort", "throughput", "--limit", "2")
    table = call(*words).stdout
    assert "wideresnet-20260301T100200-a04002" in table.splitlines()[1]
    assert "the first 2; --limit N shows more" in table
    rows = list(csv.DictReader(io.StringIO(call(*words, "--format", "csv", "--columns", "id,throughput,mfu").stdout)))
    assert [row["throughput"] for row in rows] == ["23800.0", "21900.0"]
    assert json.loads(call(*words, "--format", "json").stdout)[0]["batch_size"] == 1024
    cut = call(*words, "--format", "csv")
    assert cut.stderr == "prony: the first 2; --limit N gives more\n", "a program must not take a part for the whole"
    whole = call("query", "--limit", "13", "--format", "csv")
    assert (len(whole.stdout.splitlines()), whole.stderr) == (14, "")
    assert "the first" not in call("query", "--limit", "13").stdout
    assert json.loads(call("query", "--sql", "SELECT count(*) AS n FROM run", "--format", "json").stdout) == [{"n": 13}]


def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters one below the other are no table."""
    monkeypatch.setenv("COLUMNS", "80")
    head, *lines = call("query").stdout.splitlines()
    assert head.split() == ["id", "mode", "batch_size", "throughput", "unit"]
    assert all(len(line.split()) == 5 for line in lines[:13])
    assert max(map(len, lines)) <= 80
    said = "4 columns left out (workload, precision, devices, device); a wider terminal or --json shows them"
    assert " ".join(lines[13:]) == said
    monkeypatch.setenv("COLUMNS", "120")
    assert "left out" not in call("query", "--columns", "id,mode,batch_size").stdout
    monkeypatch.delenv("COLUMNS")
    assert "left out" not in call("query", "--columns", "id,device,host,software,message,folder,throughput").stdout


def test_of_chosen_columns_the_last_are_left_out_first() -> None:
    columns = [Column("id", ["x" * 30], False), Column("message", ["y" * 90], False), Column("rate", ["1,000"], True)]
    assert [column.name for column in fitting(columns, (), 80)] == ["id", "message", "rate"], "a text may be folded"
    assert [column.name for column in fitting(columns, (), 60)] == ["id", "message"]
    assert [column.name for column in fitting(columns, ("id", "rate", "message"), 60)] == ["id", "rate"]
    assert [column.name for column in fitting(columns, (), 10)] == ["id"], "one stays"


def test_json_is_a_word_for_the_format(call: Call) -> None:
    assert call("query", "--json").stdout == call("query", "--format", "json").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["query", "precison=bf16"], "did you mean 'precision'"),
        (["query", "--columns", "idd"], "unknown field 'idd'"),
        (["query", "classes=100"], "have is effective.classes"),
        (["query", "effective.x=1", "--kind", "anchor"], "unknown field of an anchor 'effective.x'"),
        (["query", "--columns", "asked.batch_size", "--kind", "anchor"], "unknown field of an anchor"),
        (["query", "--format", "yaml"], "unknown format"),
        (["query", "--kind", "anchors"], "did you mean 'anchor'"),
        (["query", "x=1", "--sql", "SELECT 1"], "--sql stands alone"),
        (["query", "--sql", "DROP TABLE run"], "the SQL was refused"),
        (["store", "push"], "PRONY_STORE"),
        (["store", "push", "--to", ""], "--to is missing: it names"),
        (["store", "pull"], "--from is missing: it names"),
        (["store", "push", "--to", "mysql://me:secret@x/y"], "--to mysql://me@x/y is no address of a store"),
        (["store", "pull", "--from", "/no/such/folder"], "there is no folder"),
        (["store", "import", "/no/such.tar"], "there is no file"),
        (["store", "import", "x.csv"], "there is no file"),
        (["store", "import", str(FOREIGN / "jube.csv")], "--as csv"),
        (["store", "import", "x.zip"], "of no known format"),
        (["store", "import", "x.tar", "--source", "y"], "go with --as"),
        (["store", "import", str(FOREIGN / "jube.csv"), "--as", "jube"], "needs its source"),
        (["store", "import", str(FOREIGN / "jube.csv"), "--as", "jub", "--source", "x"], "did you mean 'jube'"),
        (["store", "import", "x", "--as", "csv", "--source", "x", "--map", "a"], "is no COLUMN=FIELD"),
        (["store", "export", "x.zip"], "of no known format"),
        (["store", "export", "x.jsonl.gz"], "of no known format"),
        (["store", "export", "x.tar", "d00001", "--where", "a=1"], "not both"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_2(call: Call, words: list[str], said: str) -> None:
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stderr.startswith("prony: ")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tar", "x.jsonl", "x.csv", "x.parquet"])
def test_what_is_exported_is_imported_once(call: Call, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file, there = str(tmp_path / name), tmp_path / "there"
    assert "exported 4 runs" in call("store", "export", file, "--where", "workload=resnet50").stdout
    assert call("store", "import", file, at=there).stdout == "4 runs imported, 0 here already, 0 left out\n"
    assert call("store", "import", file, at=there).stdout == "0 runs imported, 4 here already, 0 left out\n"
    assert len(json.loads(call("query", "--format", "json", at=there).stdout)) == 4
    assert not [path for path in tmp_path.rglob(".*")], "nothing hidden stays behind"


@pytest.mark.parametrize("name", ["x.tar", "x.jsonl", "x.csv", "x.parquet"])
def test_an_export_of_nothing_comes_back_as_nothing(call: Call, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file = str(tmp_path / name)
    assert "exported 0 runs" in call("store", "export", file, "--where", "workload=none-such").stdout
    assert (
        call("store", "import", file, at=tmp_path / "there").stdout == "0 runs imported, 0 here already, 0 left out\n"
    )


def test_a_pipe_is_written_to_and_not_replaced_by_a_file(call: Call, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert call("store", "export", str(pipe), "--format", "jsonl").exit_code == 0
    reader.join(timeout=60)
    assert pipe.is_fifo(), "as root the same would have put a file in the place of /dev/null"
    assert len(read[0].splitlines()) == 13
    assert "could not be written" in call("store", "export", str(tmp_path), "--format", "jsonl").stderr


def test_a_csv_has_columns_to_read_and_the_record_in_the_last(call: Call, tmp_path: Path) -> None:
    call("store", "export", str(tmp_path / "x.csv"))
    rows = list(csv.DictReader((tmp_path / "x.csv").open(encoding="utf-8")))
    assert len(rows) == 13
    assert {row["precision"] for row in rows} == {"bf16", "fp32"}
    assert all(json.loads(row["record"])["id"] == row["id"] for row in rows)
    assert list(rows[0])[-1] == "record"


def test_records_of_a_broken_csv_are_left_out_by_name(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    call("store", "export", str(file), "d00001")
    file.write_text(file.read_text(encoding="utf-8") + "torn,\n", encoding="utf-8")
    done = call("store", "import", str(file), at=tmp_path / "there")
    assert done.stdout == "1 runs imported, 0 here already, 1 left out\n"
    assert "line 2 is left out" in done.stderr
    file.write_bytes(b"id,record\na,{\n" + b"b,\xff\n")
    assert call("store", "import", str(file), at=tmp_path / "there").exit_code == 2


def test_push_and_pull_between_folders(call: Call, root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert call("store", "push", "d00001", "c00000", "--to", str(shared)).stdout.startswith("2 runs pushed, 0 there")
    assert call("store", "push", "d00001", "--to", str(shared)).stdout.startswith("0 runs pushed, 1 there already")
    mine = tmp_path / "mine"
    assert call("store", "pull", "--from", str(shared), at=mine).stdout.startswith("2 runs pulled")
    assert call("store", "pull", "--from", str(shared), at=mine).stdout.startswith("0 runs pulled, 2 here already")
    source = root / "resnet50-20260302T100000-d00001" / "steps.csv"
    assert (mine / source.parent.name / "steps.csv").read_bytes() == source.read_bytes()


def test_a_refused_run_is_named_and_ends_in_1(call: Call, tmp_path: Path, get_record: Any) -> None:
    record = get_record("d00001")
    record["metrics"]["throughput"]["value"] = 1.0
    (tmp_path / "x.jsonl").write_text(json.dumps(record), encoding="utf-8")
    done = call("store", "import", str(tmp_path / "x.jsonl"))
    assert (done.exit_code, done.stdout) == (1, "0 runs imported, 0 here already, 1 left out\n")
    assert "never replaced" in done.stderr


def test_anchors_come_in_beside_the_records(call: Call) -> None:
    words = ("store", "import", str(FOREIGN / "jube.csv"), "--as", "jube", "--source", "a paper, table 2")
    more = ("--map", "images_per_second=value:throughput:images/s", "--set", "workload=resnet50")
    assert call(*words, *more).stdout == "2 anchors imported, 0 here already\n"
    assert call(*words, *more).stdout == "0 anchors imported, 2 here already\n"
    ask = ("query", "workload=resnet50", "--sort", "throughput", "--columns", "workload,throughput", "--format", "json")
    assert len(json.loads(call(*ask).stdout)) == 4, "records alone unless anchors are asked for"
    both = json.loads(call(*ask, "--kind", "both").stdout)
    assert [row["kind"] for row in both] == ["record"] * 4 + ["anchor"] * 2
    assert both[4] == {"kind": "anchor", "workload": "resnet50", "throughput": 2710.0}
    everything = call("query").stdout
    assert all(row["id"] in everything for row in json.loads(call("query", "--format", "json").stdout)), "ids are whole"
    figures = json.loads(call("query", "--kind", "anchor", "--format", "json").stdout)
    assert [row["batch_size"] for row in figures] == [256, 512], "figures of a source stand in an order"
    shown = call("query", "--kind", "anchor").stdout
    assert "a paper, table 2" in shown
    assert "2,311" in shown or "2311" in shown


def test_rebuild_of_no_folder_says_so(call: Call, tmp_path: Path) -> None:
    done = call("store", "rebuild", "--runs", str(tmp_path / "none"))
    assert (done.exit_code, done.output) == (2, f"prony: there is no folder {tmp_path / 'none'}\n")
    assert not (tmp_path / "none").exists()


def test_rebuild_says_what_it_did(call: Call, root: Path) -> None:
    (root / "torn").mkdir()
    (root / "torn" / "record.json").write_text("{", encoding="utf-8")
    (root / "index.sqlite").write_bytes(b"broken".ljust(68) + MARK.to_bytes(4, "big") + b"no database" * 1000)
    done = call("store", "rebuild")
    assert done.stdout == "13 runs indexed, 1 left out\n"
    assert "torn is left out" in done.stderr
