"""benchmarks/peers.py runs from end to end with small models, and one loop that fails does not end the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for library in ("torch", "timm", "transformers", "torchvision"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the scripts put the package's folder there
    import peers
    import plain

    monkeypatch.setattr(plain, "FIRST_STEPS", 1)
    monkeypatch.setattr(plain, "LEAST_STEPS", 1)
    return peers


def loops_of(peers: ModuleType, folder: Path, *only: str) -> list[dict[str, Any]]:
    words = [word for one in only for word in ("--only", one)]
    assert peers.main(["--tiny", "--seconds", "0.001", "--json", str(folder / "peers.json"), *words]) == 0
    document = json.loads((folder / "peers.json").read_text())
    assert document["device"]
    assert document["timm"]
    return list(document["loops"])


def test_each_kind_of_loop_has_a_rate(peers: ModuleType, tmp_path: Path) -> None:
    only = ("resnet50 train batch 2, plain", "resnet50 train batch 2, timm eager", "resnet50 infer batch 2, timm eager",
            "bert-base-squad train batch 2, transformers eager", "gpt-117m")  # fmt: skip
    rows = loops_of(peers, tmp_path, *only)
    assert [(row["workload"], row["mode"], row["peer"]) for row in rows] == [
        ("resnet50", "train", "plain eager"), ("resnet50", "train", "timm eager"), ("resnet50", "infer", "timm eager"),
        ("bert-base-squad", "train", "transformers eager"), ("gpt-117m", "infer", "plain eager"),
    ]  # fmt: skip
    assert all(len(row["rates"]) == 2 and min(row["rates"]) > 0 for row in rows), rows
    assert {row["unit"] for row in rows} == {"images/s", "sequences/s", "tokens/s"}


def test_one_that_fails_says_why_and_the_others_go_on(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[float]:
        raise RuntimeError("no room\nand a long story")

    monkeypatch.setattr(peers, "timm_rates", fails)
    rows = loops_of(peers, tmp_path, "resnet50 infer")
    assert [row["peer"] for row in rows] == ["plain eager", "timm eager", "timm compiled"]
    assert [row.get("reason") for row in rows] == [None, *["RuntimeError: no room"] * 2]


def test_every_row_is_a_workload_and_a_model_of_its_peer(peers: ModuleType) -> None:
    import timm

    from prony_node.workloads import WORKLOADS

    assert {work.name for work in peers.WORK} <= set(WORKLOADS)
    names = {work.timm for work in peers.WORK if work.timm}
    assert names <= set(timm.list_models())


def test_it_goes_on_where_it_ended_and_tries_again_what_failed(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(peers, "timm_rates", lambda *_: 1 / 0)
        (plain, *failed) = loops_of(peers, tmp_path, "resnet50 infer")
    assert [row["rates"] for row in failed] == [None, None]
    monkeypatch.setattr(peers, "timm_rates", lambda *_: [3.0, 4.0])
    rows = loops_of(peers, tmp_path, "resnet50 infer")
    assert "plain eager: in " in capsys.readouterr().out
    assert rows[0] == plain
    assert [row["rates"] for row in rows[1:]] == [[3.0, 4.0]] * 2


@pytest.mark.parametrize("text", ['{"device": "another", "loops": []}', "{", "[]", '{"loops": 3}', "{}"])
def test_what_cannot_be_gone_on_with_is_left_as_it_is(
    peers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Figures of another machine or version are not to be replaced by this one's."""
    path = tmp_path / "peers.json"
    path.write_text(text)
    assert peers.main(["--tiny", "--only", "resnet50 infer", "--json", str(path)]) == 2
    assert "peers.json cannot be gone on with" in capsys.readouterr().err
    assert path.read_text() == text
