"""Where generated data lies by default: the command that makes it and the run that uses it must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from prony_node.contract.errors import RequestError
from prony_node.data.generated import KINDS
from prony_node.data.generated_folder import DEFAULT_SAMPLES, generated_folder, generated_root


def test_the_folder_is_the_one_stated_then_the_cache_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    cases = [
        ({"PRONY_DATA": "/fast/data", "XDG_CACHE_HOME": "/cache"}, "/fast/data"),
        ({"PRONY_DATA": "~/data"}, "/home/someone/data"),
        ({"PRONY_DATA": "", "XDG_CACHE_HOME": "/cache"}, "/cache/prony/data"),
        ({"XDG_CACHE_HOME": "relative/is/ignored"}, "/home/someone/.cache/prony/data"),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/prony/data"),
        ({}, "/home/someone/.cache/prony/data"),
    ]
    for environment, expected in cases:
        assert generated_root(environment) == Path(expected), environment


def test_without_a_home_the_sentence_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(RequestError, match=r"there is no home folder .* set PRONY_DATA"):
        generated_root({})


def test_another_request_has_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_DATA", "/fast/data")
    requests = [
        ("imagenet", 100, "files", 0),
        ("food101", 100, "files", 0),
        ("imagenet", 101, "files", 0),
        ("imagenet", 100, "shards", 0),
        ("imagenet", 100, "files", 1),
    ]
    folders = [generated_folder(*request) for request in requests]
    assert len(set(folders)) == len(requests)
    assert {folder.parent for folder in folders} == {Path("/fast/data")}
    assert generated_folder("tokens", 100, "shards", 0) == generated_folder("tokens", 100, "files", 0)


def test_every_kind_has_a_number_of_samples() -> None:
    assert set(DEFAULT_SAMPLES) == set(KINDS)
