"""`python -m prony_node data`: lines of JSON that the controller shows to a person, and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_sets import food101, imagenet, write

from prony_node.__main__ import main
from prony_node.data import command, generated
from prony_node.data.dataset import MANIFEST, remove_unfinished
from prony_node.data.generated import generate, standing
from prony_node.data.source import open_dataset

SRC = Path(command.__file__).parents[2]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generated, "PART_FILES", 5)
    monkeypatch.setattr(generated, "PART_SEQUENCES", 8)
    monkeypatch.setattr(generated, "default_processes", lambda: 1)
    monkeypatch.setenv("PRONY_DATA", str(tmp_path / "data"))


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[tuple[str, Any]]]:
    code = main(["data", *map(str, words)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, [next(iter(line.items())) for line in lines]


def test_a_folder_is_shown_split_by_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = imagenet(tmp_path / "set")
    code, [(what, answer)] = asked(capsys, "show", folder)
    assert (code, what) == (0, "answer")
    assert (answer["path"], answer["kind"], answer["generated"]) == (str(folder), "imagenet", None)
    for split, samples in (("train", 12), ("test", 6)):
        opened = open_dataset(folder, split=split)
        size = sum(path.stat().st_size for path in opened.origin.files)
        found = answer["splits"][split]
        assert (found["samples"], found["classes"], found["files"]) == (samples, 3, samples)
        assert (found["bytes"], found["bytes_are_exact"]) == (size, True)
        assert found["fingerprint"] == opened.fingerprint()


def test_a_wrong_folder_is_refused_with_the_sentence_of_its_opening(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, [(what, sentence)] = asked(capsys, "show", tmp_path / "nothing")
    assert (code, what) == (2, "refused")
    assert "does not exist; expected a folder with" in sentence


def test_a_folder_of_which_one_split_is_incomplete_shows_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = food101(tmp_path / "set")
    (folder / "images" / "soup" / "4.jpg").unlink()
    code, [(_, answer)] = asked(capsys, "show", folder)
    assert code == 2
    assert answer["splits"]["train"]["samples"] == 3
    assert "not there: soup/4.jpg" in answer["splits"]["test"]["refused"]


def test_generating_says_first_what_it_will_take_and_then_where_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = asked(capsys, "generate", "imagenet", "--samples", 10, "--seed", 3)
    folder = tmp_path / "data" / "imagenet-files-10-seed3"
    (first, estimate), *between, (last, answer) = lines
    assert (code, first, last) == (0, "estimate", "answer")
    assert (estimate["folder"], estimate["samples"], estimate["every"], estimate["there"]) == (str(folder), 10, 11, 0)
    assert estimate["left_bytes"] == pytest.approx(answer["bytes"], rel=0.5)
    assert estimate["left_s"] > 0
    assert between[-1] == ("progress", [11, 11])
    assert (answer["folder"], answer["was_made"], answer["files"]) == (str(folder), True, 11)
    again = asked(capsys, "generate", "imagenet", "--samples", 10, "--seed", 3)
    assert again == (0, [("answer", answer | {"was_made": False})])
    shown = asked(capsys, "show", folder)[1][0][1]
    assert shown["generated"] == {"kind": "imagenet", "form": "files", "samples": 10, "seed": 3}


def test_what_was_begun_is_estimated_by_what_is_left_and_is_no_data_set_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    make, made = generated.make_part, []

    def once(*words: Any) -> Any:
        if made:
            raise OSError(28, "No space left on device")
        made.append(words)
        return make(*words)

    monkeypatch.setattr(generated, "make_part", once)
    words = ("generate", "tokens", "--samples", 20, "--out", folder)
    code, lines = asked(capsys, *words)
    assert (code, lines[-1]) == (1, ("failed", "[Errno 28] No space left on device"))
    whole = lines[0][1]["left_bytes"]
    code, [(_, sentence)] = asked(capsys, "show", folder)
    assert code == 2
    assert "is not finished" in sentence
    code, [(_, sentence)] = asked(capsys, "verify", folder)
    assert code == 2
    assert "begun and is not finished" in sentence
    leftover = write(folder / ".prony-new-abc", "half a file")
    monkeypatch.setattr(generated, "make_part", make)
    code, lines = asked(capsys, *words)
    estimate = dict(lines[:1])["estimate"]
    assert (code, estimate["there"], estimate["every"]) == (0, 8, 21)
    assert estimate["left_bytes"] == pytest.approx(whole * 13 / 21, rel=0.01)
    assert not leftover.exists()


def test_what_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = generate("imagenet", tmp_path, 10, processes=1)
    code, lines = asked(capsys, "verify", tmp_path)
    assert (code, lines[-1]) == (0, ("answer", {"path": str(tmp_path), "files": 11, "bytes": made["bytes"]}))
    assert lines[-2] == ("progress", [made["bytes"], made["bytes"]])
    missing, longer, other = (tmp_path / "train" / f"c{at:05d}" / f"c{at:05d}_{at}.JPEG" for at in range(3))
    missing.unlink()
    longer.write_bytes(longer.read_bytes() + b"x")
    content = bytearray(other.read_bytes())
    content[-9] ^= 1
    other.write_bytes(content)
    code, lines = asked(capsys, "verify", tmp_path)
    what, damage = lines[-1]
    assert (code, what) == (1, "damaged")
    assert "is damaged: 3 of 11 files" in damage["sentence"]
    assert [text.rpartition(": ")[2] for text in damage["files"]] == [
        "it is missing",
        f"it has {longer.stat().st_size:,} bytes and had {longer.stat().st_size - 1:,}",
        "its content differs",
    ]
    (tmp_path / MANIFEST).unlink()
    assert asked(capsys, "verify", tmp_path)[0] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["imagnet"], "did you mean 'imagenet'"),
        (["imagenet", "--format", "file"], "did you mean 'files'"),
        (["imagenet", "--samples", "0"], "0 samples are not possible: expected from 1"),
        (["imagenet", "--samples", "10000000000"], "10,000,000,000 samples are not possible"),
    ],
)
def test_a_wrong_request_is_refused_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    code, [(what, sentence)] = asked(capsys, "generate", *words)
    assert (code, what) == (2, "refused")
    assert says in sentence
    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 10**6))
    code, [(_, sentence)] = asked(capsys, "generate", "imagenet", "--samples", 1000)
    assert code == 2
    assert "0.00 GB free" in sentence
    assert not (tmp_path / "data").exists()


def test_nothing_is_written_by_looking(tmp_path: Path) -> None:
    found = standing("imagenet", tmp_path / "new" / "set", 10)
    assert (found.there, found.samples, found.left_share) == (0, 11, 1.0)
    assert list(tmp_path.iterdir()) == []
    remove_unfinished(tmp_path / "new")  # a folder that is not there has none


def test_it_waits_to_be_agreed_with_and_ends_when_its_input_does(tmp_path: Path) -> None:
    """Whoever asks may be killed: a node that went on would hold the folder, and write what nobody wants."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    words = ["data", "--attended", "generate", "tokens", "--samples", "20000", "--out", str(tmp_path / "set")]
    with subprocess.Popen(
        [sys.executable, "-m", "prony_node", *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "estimate" in json.loads(process.stdout.readline())
        assert not (tmp_path / "set").exists()
        process.stdin.close()
        assert process.wait(60) == 130
        assert process.stdout.read() == ""
    assert not (tmp_path / "set").exists()


def test_without_torch_the_reason_is_a_sentence(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from prony_node.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "show", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "data sets need torch" in json.loads(done.stdout)["refused"]
    assert "pip install 'prony[node,vision]'" in json.loads(done.stdout)["refused"]
