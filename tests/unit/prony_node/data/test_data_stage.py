"""A staged copy is whole or not believed, goes on where it was, and says what it refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from small_sets import food101, imagenet, write

from prony_node.contract import RequestError
from prony_node.data import source as room
from prony_node.data.source import LIST, open_dataset, stage


def test_a_copy_is_the_same_data_set(tmp_path: Path) -> None:
    source = imagenet(tmp_path / "source")
    told: list[tuple[int, int]] = []
    staged = stage(source, tmp_path / "fast" / "copy", lambda *now: told.append(now))
    assert (staged.files, staged.bytes) == (18, staged.copied_bytes)
    assert staged.seconds > 0
    assert told == sorted(told)
    assert told[-1] == (staged.bytes, staged.bytes)
    assert open_dataset(staged.folder).fingerprint() == open_dataset(source).fingerprint()
    again = stage(source, staged.folder)
    assert (again.copied_bytes, again.bytes) == (0, staged.bytes)


def test_what_changed_on_either_side_is_copied_again(tmp_path: Path) -> None:
    source = food101(tmp_path / "source")
    target = tmp_path / "copy"
    stage(source, target)
    first, second = (Path("images", "pie", f"{number}.jpg") for number in (1, 2))
    write(source / first, b"newer")
    write(target / second, b"x" * (source / second).stat().st_size)  # same size, other content
    os.utime(target / second, ns=(1, 1))
    staged = stage(source, target)
    assert staged.copied_bytes == 5 + (source / second).stat().st_size
    for name in (first, second):
        assert (target / name).read_bytes() == (source / name).read_bytes()


def test_a_copy_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = imagenet(tmp_path / "source"), tmp_path / "copy"
    copy, calls = room._copy, []

    def fails_later(file: room.SourceFile, goal: Path) -> list[object]:
        calls.append(file.name)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return copy(file, goal)

    monkeypatch.setattr(room, "_copy", fails_later)
    monkeypatch.setattr(room, "THREADS", 1)
    with pytest.raises(KeyboardInterrupt):
        stage(source, target)
    monkeypatch.undo()
    with (target / LIST).open("a") as lines:
        lines.write('["train/n2/n2_')  # half a line
    write(target / "train" / ".prony-new-x", b"half a file")
    staged = stage(source, target)
    assert 0 < staged.copied_bytes < staged.bytes
    assert not list(target.rglob(".prony-new-*"))
    assert stage(source, target).copied_bytes == 0
    for path in source.rglob("*.JPEG"):
        assert (target / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_a_disk_that_does_not_keep_what_it_is_given_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source" / "a.txt", b"text").parent
    monkeypatch.setattr(room, "hash_file", lambda path: "something else")
    with pytest.raises(RequestError, match="does not hold what was copied to it"):
        stage(source, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").rglob("a*")] == []


def test_refusals_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source" / "a.txt", b"text").parent
    with pytest.raises(RequestError, match="does not exist"):
        stage(tmp_path / "nowhere", tmp_path / "copy")
    with pytest.raises(RequestError, match="lies within"):
        stage(source, source / "copy")
    with pytest.raises(RequestError, match="is a file"):
        stage(source, write(tmp_path / "file", b""))
    write(tmp_path / "full" / "mine.txt", b"")
    with pytest.raises(RequestError, match=r"holds files that .* does not: mine.txt"):
        stage(source, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="holds no files to copy"):
        stage(tmp_path / "empty", tmp_path / "copy")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 3))
    with pytest.raises(RequestError, match="GB are needed"):
        stage(source, tmp_path / "copy")
    monkeypatch.undo()
    (source / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(RequestError, match="link cannot be copied"):
        stage(source, tmp_path / "copy")


def test_links_are_followed_once(tmp_path: Path) -> None:
    source = write(tmp_path / "source" / "a" / "x.txt", b"text").parents[1]
    (source / "a" / "round").symlink_to(source)
    (source / "y.txt").symlink_to(source / "a" / "x.txt")
    staged = stage(source, tmp_path / "copy")
    assert staged.files == 2
    assert not (tmp_path / "copy" / "y.txt").is_symlink()
