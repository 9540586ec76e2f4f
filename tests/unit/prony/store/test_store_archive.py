"""Run folders from elsewhere: whole or not at all, never over another, and no tar can do harm."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.store import tabular, transfer
from prony.store.archive import ArchiveLimits, pack, pack_one
from prony.store.transfer import as_stream, records_of, take_records, take_tar
from prony_node.contract.errors import RequestError

REPLAY = Path(__file__).parents[3] / "replay" / "records"
FOLDER = next(REPLAY.glob("*d00001"))
RECORD = (FOLDER / "record.json").read_bytes()


def tar_of(*members: tuple[str, bytes | dict[str, Any]], compressed: bool = False) -> bytes:
    """A tar with any members: content, or what its header is to say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for key, value in content.items():
                    setattr(member, key, value)
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return gzip.compress(buffer.getvalue()) if compressed else buffer.getvalue()


def take(content: bytes, root: Path, **limits: int) -> transfer.ImportResult:
    return take_tar(as_stream(content), root, "x.tar", ArchiveLimits(**limits))


def untouched(root: Path) -> bool:
    return not root.exists() or list(root.iterdir()) == []


@pytest.mark.parametrize("compressed", [True, False])
def test_folders_come_back_as_they_were(tmp_path: Path, compressed: bool) -> None:
    buffer = io.BytesIO()
    folders = sorted(path.parent for path in REPLAY.glob("*/record.json"))
    pack(folders, buffer, compressed)
    arrived = take(buffer.getvalue(), tmp_path)
    assert sorted(arrived.new) == [folder.name for folder in folders]
    for path in FOLDER.iterdir():
        assert (tmp_path / FOLDER.name / path.name).read_bytes() == path.read_bytes()
    again = take(buffer.getvalue(), tmp_path)
    assert (again.new, len(again.known), again.refused) == ([], len(folders), [])
    assert {path.name for path in tmp_path.iterdir()} == {folder.name for folder in folders}


def test_the_same_folders_give_the_same_bytes(tmp_path: Path) -> None:
    """An archive in a repository must not change with the time of a checkout, its own name or who packs it."""
    packed = []
    for name, moment in (("one.tar.gz", 1_000_000), ("two.tar.gz", 2_000_000)):
        folder = tmp_path / name / FOLDER.name
        shutil.copytree(FOLDER, folder)
        for path in folder.iterdir():
            os.utime(path, (moment, moment))
        with (tmp_path / f"packed-{name}").open("wb") as file:
            pack([folder], file)
        packed.append((tmp_path / f"packed-{name}").read_bytes())
    assert packed[0] == packed[1]


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}


@pytest.mark.parametrize(
    "members",
    [
        [("../evil/record.json", RECORD)],
        [("/etc/cron.d/x", RECORD)],
        [("run/../../evil", RECORD)],
        [("run/a/b/c/d", RECORD)],
        [("record.json", RECORD)],
        [("run/.hidden", RECORD)],
        [("run\\..\\x/record.json", RECORD)],
        [("run", LINK), ("run/record.json", RECORD)],
        [("run/link", LINK)],
        [("run/hard", {"type": tarfile.LNKTYPE, "linkname": "run/record.json"})],
        [("run/device", {"type": tarfile.CHRTYPE})],
        [("run/fifo", {"type": tarfile.FIFOTYPE})],
        [("run/record.json", RECORD), ("run/record.json", b"{}")],
        [("run/a", b"x"), ("run/a/b", b"y")],
        [("run/sparse", {"type": tarfile.GNUTYPE_SPARSE})],
    ],
    ids=lambda members: members[0][0],
)
def test_a_hostile_tar_is_refused_whole(tmp_path: Path, members: list[tuple[str, Any]]) -> None:
    root = tmp_path / "root"
    good = ("good/record.json", RECORD)
    with pytest.raises(RequestError, match=r"x.tar is (refused|no whole tar).*nothing was imported"):
        take(tar_of(good, *members), root)
    assert untouched(root)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["root"])


def test_bombs_are_refused_before_they_grow(tmp_path: Path) -> None:
    zeros = tar_of(("run/steps.csv", b"\0" * 5_000_000), compressed=True)
    assert len(zeros) < 20_000
    with pytest.raises(RequestError, match="a file may have 1,000,000"):
        take(zeros, tmp_path, file_bytes=1_000_000)
    with pytest.raises(RequestError, match="unpacked it has more than 1,000,000"):
        take(zeros, tmp_path, whole_bytes=1_000_000)
    with pytest.raises(RequestError, match="more than 3 files"):
        take(tar_of(*((f"run/{n}", b"") for n in range(9))), tmp_path, members=3)
    huge = tarfile.TarInfo("run/x")
    huge.type, huge.size = tarfile.XHDTYPE, 2**32  # a header that says that it is itself 4 GiB long
    with pytest.raises(RequestError, match="asks for 4,294,967,296 bytes at once"):
        take(huge.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 2048, tmp_path)
    assert untouched(tmp_path)


def test_headers_without_end_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 0
    with pytest.raises(RequestError, match="nothing was imported"):
        take(header.tobuf() * 3000, tmp_path)


@pytest.mark.parametrize("kept", [0, 1, 600, 2000])
def test_half_a_tar_is_not_believed(tmp_path: Path, kept: int) -> None:
    for whole in (pack_one(FOLDER), tar_of(("run/record.json", RECORD))):
        with pytest.raises(RequestError, match="nothing was imported"):
            take(whole[:kept], tmp_path)
    assert untouched(tmp_path)


def test_a_tar_cut_off_between_two_files_is_not_believed(tmp_path: Path) -> None:
    one = tar_of(("run/record.json", RECORD))
    end = 512 * (1 + -(-len(RECORD) // 512))
    assert take(one[: end + 512], tmp_path).new, "with its end mark it is whole"
    with pytest.raises(RequestError, match="ends before its end mark"):
        take(one[:end], tmp_path)


@settings(max_examples=80)
@given(st.binary(max_size=600), st.integers(0, 3000), st.booleans())
def test_no_bytes_break_an_import(tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, inside: bool) -> None:
    whole = tar_of(("run/record.json", RECORD))
    content = whole[:at] + junk + whole[at + len(junk) :] if inside else junk
    root = tmp_path_factory.mktemp("junk")
    try:
        arrived = take(content, root)
    except RequestError:
        assert untouched(root)
    else:
        assert {path.name for path in root.iterdir()} == set(arrived.new)


def test_a_folder_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    torn = ("torn/record.json", RECORD[:500])
    arrived = take(tar_of(("running/plan.json", b"{}"), torn, ("good/record.json", RECORD)), tmp_path)
    assert arrived.new == [FOLDER.name]
    assert {str(one.folder) for one in arrived.refused} == {"running", "torn"}
    assert all("not finished" in one.reason for one in arrived.refused)
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER.name]


def test_a_record_is_never_replaced(tmp_path: Path) -> None:
    take(tar_of(("run/record.json", RECORD)), tmp_path)
    other = json.loads(RECORD)
    other["metrics"]["throughput"]["value"] = 1e9
    arrived = take(tar_of(("run/record.json", json.dumps(other).encode())), tmp_path)
    assert "never replaced" in arrived.refused[0].reason
    lines = take_records([json.dumps(other)], tmp_path, "x.jsonl")
    assert "never replaced" in lines.refused[0].reason
    assert (tmp_path / FOLDER.name / "record.json").read_bytes() == RECORD


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 300, 7, None])
def test_an_id_that_is_no_name_is_refused(tmp_path: Path, name: Any) -> None:
    record = json.loads(RECORD) | {"id": name}
    assert len(take_records([json.dumps(record)], tmp_path, "x").refused) == 1
    assert len(take(tar_of(("run/record.json", json.dumps(record).encode())), tmp_path).refused) == 1
    assert untouched(tmp_path)


def test_json_lines_and_parquet_hold_whole_records(tmp_path: Path) -> None:
    records = list(records_of(path.parent for path in sorted(REPLAY.glob("*/record.json"))))
    for write, suffix in ((tabular.write_json_lines, "jsonl"), (tabular.write_parquet, "parquet")):
        path, root = tmp_path / f"x.{suffix}", tmp_path / suffix
        if suffix == "parquet":
            pytest.importorskip("pyarrow")
        with tabular.whole_file(path) as out:
            assert write(records, out) == len(records)
        lines = tabular.read_parquet(path) if suffix == "parquet" else path.read_text("utf-8").splitlines()
        assert len(take_records(lines, root, str(path)).new) == len(records)
        assert sorted(r["id"] for r in records_of(root.iterdir())) == sorted(r["id"] for r in records)
        again = take_records(path.read_text("utf-8").splitlines(), root, "x") if suffix == "jsonl" else None
        assert again is None or (again.new, len(again.known)) == ([], len(records))


def test_lines_that_are_no_records_are_named(tmp_path: Path) -> None:
    lines = [RECORD.decode().replace("\n", " "), "{", '{"schema": "prony.record/99"}', "[1]", "", "[" * 100_000]
    arrived = take_records(lines, tmp_path, "x.jsonl")
    assert len(arrived.new) == 1
    assert [str(one.folder) for one in arrived.refused] == [f"x.jsonl, line {n}" for n in (2, 3, 4, 6)]


def test_parquet_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RequestError, match="no whole Parquet file"):
        list(tabular.read_parquet(tmp_path / "x.parquet"))


def test_without_pyarrow_a_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(RequestError, match="Parquet needs pyarrow"):
        tabular.write_parquet([], io.BytesIO())


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("prony.store.archive._copy", full)
    with pytest.raises(RequestError, match="is full"):
        take(tar_of(("run/record.json", RECORD)), tmp_path)
    monkeypatch.setattr("prony_node.contract.files.os.fsync", full)
    with pytest.raises(RequestError, match="is full"):
        take_records([RECORD.decode().replace("\n", " ")], tmp_path, "x")
    with pytest.raises(RequestError, match="could not be written"), tabular.whole_file(tmp_path / "x.jsonl") as out:
        out.write(b"half")
    assert untouched(tmp_path)


def test_nothing_begins_where_nothing_can_be_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prony.store.transfer.os.access", lambda path, mode: False)
    with pytest.raises(RequestError, match="cannot be written; --runs DIR or PRONY_RUNS names another place"):
        take(tar_of(("run/record.json", RECORD)), tmp_path / "new")
    with pytest.raises(RequestError, match="cannot be written"):
        take_records([], tmp_path, "x")
    assert untouched(tmp_path)
