"""`prony data`: what a person sees of it, what it asks, how it ends. The node is a stand-in that tells set lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from prony.cli import data as verb
from prony.cli import progress
from prony.cli.data import DataSetEstimate, estimate_lines
from prony.cli.main import make_app
from prony.cli.progress import make_bar
from prony.engine.progress import roughly
from prony_node.contract.typed import decode

SPLIT = {
    "samples": 20000, "classes": 1000, "vocabulary": None, "sequence": None, "files": 20000, "bytes": 2_300_000_000,
    "bytes_are_exact": False, "fingerprint": "961b6d775e3c303c",
}  # fmt: skip
ESTIMATE = {
    "folder": "/data/x", "processes": 16, "kind": "imagenet", "form": "files", "samples": 20000, "every": 21000,
    "there": 0, "left_bytes": 2_452_000_000, "left_s": 26.3,
}  # fmt: skip
ANSWER = {"folder": "/data/x", "was_made": True, "files": 21000, "bytes": 2_400_000_000}


class StandIn:
    """A node that tells these lines; one that is an exception is raised in the middle of them."""

    def __init__(self, lines: list[Any]) -> None:
        self.told, self.agreed = lines, 0
        self.words: tuple[str, ...] = ()

    @contextmanager
    def talk(self, *words: str) -> Iterator[StandIn]:
        self.words = words
        yield self

    def lines(self) -> Iterator[tuple[str, Any]]:
        for line in self.told:
            if isinstance(line, BaseException):
                raise line
            yield line

    def agree(self) -> None:
        self.agreed += 1

    def last_words(self) -> str:
        return "MemoryError"


class Asked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *words: str, lines: list[Any], typed: str | None = None) -> tuple[Result, StandIn]:
        node = StandIn(lines)
        self._patch.setattr(verb, "talk", node.talk)
        if typed is not None:
            self._patch.setattr(verb, "_on_terminal", lambda: True)
        return CliRunner().invoke(make_app("data"), ["data", *words], input=typed), node


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_a_folder_is_shown(asked: Asked) -> None:
    made = {"kind": "imagenet", "form": "files", "samples": 20000, "seed": 0}
    document = {"path": "/data/x", "kind": "imagenet", "splits": {"train": SPLIT, "test": SPLIT}, "generated": made}
    result, node = asked("show", "x", lines=[("answer", document)])
    assert result.exit_code == 0
    for expected in ("/data/x", "seed 0", "20,000", "1,000", "about 2.300 GB", "961b6d775e3c303c"):
        assert expected in result.stdout
    assert node.words == ("data", "--attended", "show", str(Path("x").absolute()))
    result, _ = asked("show", "x", "--json", lines=[("answer", document)])
    assert json.loads(result.stdout) == document


def test_an_incomplete_split_ends_with_its_sentence_and_2(asked: Asked) -> None:
    splits = {"train": SPLIT, "test": {"refused": "/data/x is no complete set of shards"}}
    document = {"path": "/data/x", "kind": "shards", "splits": splits, "generated": None}
    result, _ = asked("show", "x", lines=[("answer", document)])
    assert result.exit_code == 2
    assert "961b6d775e3c303c" in result.stdout
    assert result.stderr == "prony: /data/x is no complete set of shards\n"


def test_a_refusal_is_one_sentence_and_2(asked: Asked) -> None:
    result, _ = asked("show", "x", lines=[("refused", "x does not exist")])
    assert (result.exit_code, result.stderr) == (2, "prony: x does not exist\n")


def test_generating_says_what_it_takes_how_far_it_is_and_how_to_use_it(asked: Asked) -> None:
    lines = [("estimate", ESTIMATE), ("progress", [10500, 21000]), ("progress", [21000, 21000]), ("answer", ANSWER)]
    words = ("--samples", "20000", "--format", "shards", "--seed", "7", "--out", "there")
    result, node = asked("generate", "imagenet", *words, lines=lines)
    assert result.exit_code == 0
    assert node.agreed == 1
    out = f"--out={Path('there').absolute()}"
    assert node.words[2:] == ("generate", "--format=shards", "--seed=7", "--samples=20000", out, "--", "imagenet")
    assert "2.452 GB to write, about 26 s with 16 processes, into /data/x" in result.stderr
    assert "21,000 of 21,000 samples" in result.stderr
    assert result.stdout == "/data/x 21,000 files, 2.400 GB\nto use it: data=/data/x\n"
    result, _ = asked("generate", "imagenet", lines=[("answer", ANSWER | {"was_made": False})])
    assert "was there already" in result.stdout


@pytest.mark.parametrize(
    ("typed", "words", "left_bytes", "agreed"),
    [
        ("y\n", [], 2e9, 1),
        ("n\n", [], 2e9, 0),
        ("\n", [], 2e9, 0),
        ("", [], 2e9, 0),  # the end of input
        ("n\n", ["--yes"], 2e9, 1),
        ("n\n", [], 0.9e9, 1),
        (None, [], 2e9, 1),  # no terminal, nobody to ask
    ],
)
def test_a_terminal_is_asked_before_much_is_written(
    asked: Asked, typed: str | None, words: list[str], left_bytes: float, agreed: int
) -> None:
    lines = [("estimate", ESTIMATE | {"left_bytes": left_bytes}), ("answer", ANSWER)]
    result, node = asked("generate", "imagenet", *words, lines=lines, typed=typed)
    assert node.agreed == agreed
    assert result.exit_code == (0 if agreed else 130)
    assert ("nothing was written" in result.stderr) == (not agreed)


def test_ctrl_c_ends_with_130_and_says_that_it_can_be_gone_on_with(asked: Asked) -> None:
    lines = [("estimate", ESTIMATE), ("progress", [250, 21000]), KeyboardInterrupt()]
    result, _ = asked("generate", "imagenet", lines=lines)
    assert result.exit_code == 130
    assert "interrupted; what is finished is kept, and the same command goes on with it" in result.stderr
    assert result.stdout == ""


def test_a_failure_and_a_silence_end_with_1(asked: Asked) -> None:
    result, _ = asked("generate", "tokens", lines=[("estimate", ESTIMATE), ("failed", "No space left on device")])
    assert result.exit_code == 1
    assert "it could not go on: No space left on device" in result.stderr
    result, _ = asked("verify", "x", lines=[])
    assert result.exit_code == 1
    assert "ended without an answer: MemoryError" in result.stderr


def test_what_differs_is_named_with_1(asked: Asked) -> None:
    damage = {"sentence": "x is damaged: 1 of 4 files: a.tar", "files": ["a.tar: it is missing"]}
    result, _ = asked("verify", "x", lines=[("progress", [1, 4]), ("damaged", damage)])
    assert result.exit_code == 1
    assert result.stdout == "a.tar: it is missing\n"
    assert "prony: x is damaged: 1 of 4 files: a.tar" in result.stderr
    result, _ = asked("verify", "x", lines=[("answer", {"path": "/data/x", "files": 4, "bytes": 5_000_000})])
    assert (result.exit_code, result.stdout) == (0, "/data/x is as it was made: 4 files, 5.000 MB\n")


def test_an_estimate_says_what_is_there_and_what_is_not_known() -> None:
    text = "\n".join(
        estimate_lines(decode(DataSetEstimate, ESTIMATE | {"there": 5000, "left_s": None, "processes": 1}))
    )
    assert "20,000 samples of imagenet to train and 1,000 to test, as files; 5,000 of 21,000 are there" in text
    assert "a time that could not be estimated with one process" in text
    assert (roughly(0.2), roughly(26.3), roughly(185)) == ("1 s", "26 s", "3 min 05 s")


def test_a_bar_moves_on_a_terminal_and_is_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    moving = make_bar(Console(file=out, force_terminal=True, width=100), "generating", "samples")
    moving.update(250, 1000)
    moving.end()
    assert "250 of 1,000 samples" in out.getvalue()
    assert "\x1b[" in out.getvalue()
    out, now_s = io.StringIO(), 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    plain = make_bar(Console(file=out), "verifying", "B")
    for now_s, done in ((0.0, 0), (1.0, 1_000_000), (6.0, 2_000_000), (7.0, 4_000_000)):  # noqa: B007
        plain.update(done, 4_000_000)
    plain.end()
    assert out.getvalue().splitlines() == [
        "verifying: 0 B of 4.000 MB",
        "verifying: 2.000 MB of 4.000 MB, about 6 s left",
        "verifying: 4.000 MB of 4.000 MB",
    ]
