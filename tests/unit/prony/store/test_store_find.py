"""A few characters must find the run that is meant, or say which could be."""

from __future__ import annotations

from pathlib import Path

import pytest

from prony.store import Store
from prony_node.contract.errors import RequestError


def test_id_prefix_suffix_latest_and_path(root: Path, replay: Path) -> None:
    store = Store(root)
    wanted = "resnet50-20260302T100000-d00001"
    assert store.find(wanted).id == wanted
    assert store.find("resnet50-20260302T10").id == wanted
    assert store.find("d00001").id == wanted
    assert store.find("latest").id == "gpt-tiny-20260303T081000-e00002"
    outside = replay / wanted
    assert store.find(str(outside)).folder == outside


def test_not_every_run_is_read_to_find_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million runs that would take minutes and gigabytes."""
    store = Store(root)
    read: list[int] = []
    select = Store._select
    monkeypatch.setattr(Store, "_select", lambda *given: read.append(len(found := select(*given))) or found)
    for text in ("d00001", "resnet50-20260302T10", "latest"):
        store.find(text)
    assert read == [1, 1, 1]
    with pytest.raises(RequestError, match="no run ''"):
        store.find("")


def test_ambiguous_text_names_the_candidates(root: Path) -> None:
    with pytest.raises(RequestError, match=r"stands for 4 runs: resnet50-20260302T100000-d00001, "):
        Store(root).find("resnet50")


def test_unknown_text_names_the_nearest(root: Path) -> None:
    with pytest.raises(RequestError, match="did you mean 'resnet50-20260302T100000-d00001'"):
        Store(root).find("resnet50-20260302T100000-d0001")


def test_no_runs_at_all_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="PRONY_RUNS"):
        Store(tmp_path).find("latest")


def test_renamed_folder_is_found_by_its_record(root: Path) -> None:
    (root / "resnet50-20260302T100000-d00001").rename(root / "copied")
    store = Store(root)
    assert store.find("d00001").folder == root / "copied"
    assert store.find("copied").id == "resnet50-20260302T100000-d00001"
