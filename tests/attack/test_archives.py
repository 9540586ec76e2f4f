"""Archives and tables from anyone: what they unpack to is bounded by what they are, and memory by neither."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prony.store import tabular, transfer
from prony.store.transfer import take_tar
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import UNPACKED_FREELY

SOURCE = Path(__file__).parents[2] / "src"
REPLAY = Path(__file__).parents[1] / "replay" / "records"
GOOD = "resnet50-20260302T090000-c00000"
MOST_MIB = 500  # of memory, above what the program itself takes

# The peak of memory of an import, above what was there before it.
IMPORT = """
import resource, sys
from pathlib import Path
import prony.store.transfer, prony.store.index, prony.store.tabular
try:
    import pyarrow.parquet
except ImportError:
    pass
from prony.engine.transfer import import_file
from prony_node.contract.errors import RequestError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    arrived = import_file(Path(sys.argv[1]), Path(sys.argv[2]))
    print(len(arrived.new), "imported", [one.reason for one in arrived.refused])
except RequestError as error:
    print("refused:", error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def import_(path: Path, root: Path) -> tuple[str, int]:
    """What an import said, and the MiB that it took."""
    done = subprocess.run([sys.executable, "-c", IMPORT, str(path), str(root)], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)  # fmt: skip
    *said, most = done.stdout.strip().splitlines()
    return "\n".join(said), int(most)


def a_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_a_record_of_empty_lists_does_not_take_gigabytes(tmp_path: Path) -> None:
    """88 kB, which were 2.3 GB: a list is 3 bytes of JSON and 64 of memory."""
    content = b'{"a":[' + b"[]," * 20_000_000 + b"[]]}"
    path = a_tar(tmp_path / "bomb.tar.gz", [(f"{GOOD}/record.json", content)])
    assert path.stat().st_size < 100_000
    said, most = import_(path, tmp_path / "runs")
    assert "0 imported" in said or "refused" in said
    assert most < MOST_MIB


@pytest.mark.parametrize("kind", [tarfile.XGLTYPE, tarfile.XHDTYPE])
def test_headers_without_end_do_not_take_gigabytes(tmp_path: Path, kind: bytes) -> None:
    """tarfile keeps what the extended headers say, and the global ones for ever."""
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(20):
            body = b"".join(b"18 k%06d=%06d\n" % (number * 10**5 % 10**6 + one, one) for one in range(40_000))
            header = tarfile.TarInfo("pax")
            header.type, header.size = kind, len(body)
            file.write(header.tobuf(tarfile.USTAR_FORMAT) + body + b"\0" * (-len(body) % 512))
            file.write(tarfile.TarInfo(f"{GOOD}/x{number}").tobuf(tarfile.USTAR_FORMAT))
        file.write(b"\0" * 1024)
    said, most = import_(path, tmp_path / "runs")
    assert "refused" in said
    assert most < MOST_MIB


def test_a_few_bytes_that_unpack_to_very_many_are_refused(tmp_path: Path) -> None:
    zeros = b"\0" * (UNPACKED_FREELY // 2)
    path = a_tar(tmp_path / "bomb.tar.gz", [(f"{GOOD}/file{number}", zeros) for number in range(4)])
    with path.open("rb") as file, pytest.raises(RequestError, match="times as many"):
        take_tar(file, tmp_path / "runs", "bomb")
    assert not list((tmp_path / "runs").iterdir()), "nothing is left behind"


def test_very_many_members_do_not_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.tar"
    with path.open("wb") as file:
        for _ in range(50_000):  # one folder, again and again: no disk is filled
            entry = tarfile.TarInfo(GOOD)
            entry.type = tarfile.DIRTYPE
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
        file.write(b"\0" * 1024)
    _, most = import_(path, tmp_path / "runs")
    assert most < 10


def _link(entry: tarfile.TarInfo) -> None:
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"


def _hard_link(entry: tarfile.TarInfo) -> None:
    entry.type, entry.linkname = tarfile.LNKTYPE, f"{GOOD}/record.json"


def _device(entry: tarfile.TarInfo) -> None:
    entry.type, entry.devmajor, entry.devminor = tarfile.CHRTYPE, 1, 5


def _fifo(entry: tarfile.TarInfo) -> None:
    entry.type = tarfile.FIFOTYPE


def _sparse(entry: tarfile.TarInfo) -> None:
    entry.type = tarfile.GNUTYPE_SPARSE


def _twice(entry: tarfile.TarInfo) -> None:
    entry.name = f"{GOOD}/record.json"


@pytest.mark.parametrize("change", [_link, _hard_link, _device, _fifo, _sparse, _twice])
def test_a_member_that_no_run_folder_has_refuses_the_archive(
    tmp_path: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    path = tmp_path / "x.tar"
    record = (REPLAY / GOOD / "record.json").read_bytes()
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        good = tarfile.TarInfo(f"{GOOD}/record.json")
        good.size = len(record)
        tar.addfile(good, io.BytesIO(record))
        entry = tarfile.TarInfo(f"{GOOD}/steps.csv")
        change(entry)
        tar.addfile(entry)
    with path.open("rb") as file, pytest.raises(RequestError, match="nothing was imported"):
        take_tar(file, tmp_path / "runs", "x.tar")
    assert not list((tmp_path / "runs").iterdir())


def test_json_lines_and_csv_of_few_bytes_a_value_do_not_take_gigabytes(tmp_path: Path) -> None:
    values = "[" + "[]," * 15_000_000 + "[]]"
    (tmp_path / "x.jsonl").write_text(values + "\n")
    (tmp_path / "x.csv").write_text(f'record\n"{values}"\n')
    for name in ("x.jsonl", "x.csv"):
        said, most = import_(tmp_path / name, tmp_path / "runs")
        assert "0 imported" in said, said
        assert most < MOST_MIB, name


def test_a_parquet_file_that_repeats_one_long_text_does_not_take_gigabytes(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    text = json.dumps({"schema": "prony.record/2", "x": "a" * 3_000_000})
    column = pyarrow.DictionaryArray.from_arrays([0] * 300, [text])
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"record": column}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    said, most = import_(path, tmp_path / "runs")
    assert "refused: " in said
    assert not (tmp_path / "runs").exists()
    assert most < MOST_MIB


def test_a_million_lines_that_are_no_records_are_not_all_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n" * 1_000_000)
    (tmp_path / "x.csv").write_text("record\n" + "{\n" * 1_000_000)
    for name in ("x.jsonl", "x.csv"):
        said, most = import_(tmp_path / name, tmp_path / "runs")
        assert said.count("it is no record") == transfer.MOST_REFUSED, name
        assert most < 50, name


def test_how_many_lines_are_refused_and_that_the_file_is_not_read_on_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n" * 10_001)
    words = [sys.executable, "-m", "prony", "store", "import", str(tmp_path / "x.jsonl"), "--runs", str(tmp_path / "r")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": str(SOURCE)})  # fmt: skip
    assert done.returncode == 1
    assert "0 runs imported, 0 here already, 10000 left out" in done.stdout
    assert f"{tmp_path / 'x.jsonl'} is not read on: 10,000 of its lines were refused" in done.stderr


def test_a_parquet_file_of_a_few_bytes_and_a_million_equal_rows_is_not_read_on(tmp_path: Path) -> None:
    """The record is a good one, so that each row but the first is here already."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    text = json.dumps(json.loads((REPLAY / GOOD / "record.json").read_text()) | {"note": "a" * 1_000_000})
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1_000_000, pyarrow.int32()), [text])
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"record": column}), path, compression="zstd")
    rows = tabular.read_parquet(path)
    with pytest.raises(RequestError, match="unpacked it has 100 times its size"):
        list(itertools.islice(rows, 1000))


@pytest.mark.parametrize("rows", [{"id": ["x"]}, {"record": [{"id": "x"}]}, {"a": [{"record": "x"}], "b": ["x"]}])
def test_a_parquet_file_without_a_column_of_records_is_refused(tmp_path: Path, rows: dict[str, list[object]]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    parquet.write_table(pyarrow.table(rows), tmp_path / "x.parquet")
    with pytest.raises(RequestError, match="has no column 'record'"):
        list(tabular.read_parquet(tmp_path / "x.parquet"))
