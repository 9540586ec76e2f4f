"""A file is written whole or not at all, and by one writer only where that was asked for."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import files

LARGE = ["x" * 100] * 2000  # more than a page, so that half of it could be seen


def write_and_tell(path: Path, number: int, barrier: Any, won: Any) -> None:
    barrier.wait()
    if files.write_once(path, {"writer": number, "body": LARGE}):
        won.put(number)


def test_of_eight_writers_at_once_one_wins_and_the_file_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        path = tmp_path / f"record{attempt}.json"
        barrier, won = context.Barrier(8), context.SimpleQueue()
        writers = [context.Process(target=write_and_tell, args=(path, number, barrier, won)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(30)
            assert writer.exitcode == 0
        winner = won.get()
        assert won.empty()
        assert json.loads(path.read_text()) == {"writer": winner, "body": LARGE}
    assert sorted(child.name for child in tmp_path.iterdir()) == [f"record{attempt}.json" for attempt in range(3)]


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_the_first_writer_still_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "record.json"
    assert files.write_once(path, {"writer": 1}) is True
    assert files.write_once(path, {"writer": 2}) is False
    assert json.loads(path.read_text()) == {"writer": 1}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_without_hard_links_eight_writers_leave_one_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)  # and so in the forked writers
    test_of_eight_writers_at_once_one_wins_and_the_file_is_whole(tmp_path)


def test_what_json_cannot_hold_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_whole(path, {"a": 1})
    for writer in (files.write_whole, files.write_once):
        with pytest.raises(ValueError, match="JSON"):
            writer(path, {"a": float("nan")})
        with pytest.raises(TypeError):
            writer(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    files.write_whole(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for writer in (files.write_whole, files.write_once):
        with pytest.raises(OSError, match="No space left"):
            writer(path, {"a": 2})
    assert files.read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "\udcff", "nul"])
def test_an_unfinished_file_reads_as_absent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert files.read_json(path) is None
    assert files.read_json(tmp_path / "none.json") is None
    assert files.read_json(path / "below.json") is None


def test_one_meaning_has_one_text() -> None:
    assert files.canonical_json({"b": 1, "a": [True, "ä"]}) == files.canonical_json({"a": [True, "ä"], "b": 1})


def test_a_folder_appears_with_all_its_files_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    files.create_folder(folder, {"plan.json": {"a": 1}, "facts.json": {"b": 2}})
    assert files.read_json(folder / "plan.json") == {"a": 1}
    with pytest.raises(FileExistsError):
        files.create_folder(folder, {"plan.json": {"a": 3}})
    with pytest.raises(ValueError, match="JSON"):
        files.create_folder(tmp_path / "runs" / "two", {"plan.json": {"a": 1}, "facts.json": float("inf")})
    assert files.read_json(folder / "plan.json") == {"a": 1}
    assert [child.name for child in folder.parent.iterdir()] == ["one"]
    (tmp_path / "runs" / "empty").mkdir()
    files.create_folder(tmp_path / "runs" / "empty", {"plan.json": {}})
    assert (tmp_path / "runs" / "empty" / "plan.json").exists()
