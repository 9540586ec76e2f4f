"""benchmarks/peers.py starts other people's programs, reads what they print, and keeps a row of each."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TIMM = """
import json, sys
mode = sys.argv[sys.argv.index("--bench") + 1]
if mode == "infer":
    sys.exit("CUDA error: no kernel image")
print("log line")
print("--result")
print(json.dumps({"model": "x", f"{mode}_samples_per_sec": 50.0}, indent=4))
"""
NANOGPT = "print('19/20 loss: 10.1'); print('time per iteration: 24.0000ms, MFU: 40.00%')"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers

    return peers


@pytest.fixture
def checkouts(tmp_path: Path) -> list[str]:
    for name, script, program in (("timm", "benchmark.py", TIMM), ("nanogpt", "bench.py", NANOGPT)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / script).write_text(program)
        (folder / "COMMIT").write_text("0123456789abcdef\n")
    return ["--timm", str(tmp_path / "timm"), "--nanogpt", str(tmp_path / "nanogpt")]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_rate_is_the_one_that_the_program_printed(peers: ModuleType, checkouts: list[str], tmp_path: Path) -> None:
    out = tmp_path / "peers.jsonl"
    words = ["--only", "train batch 2, bf16 autocast, channels-last, eager", "--only", "nanoGPT"]
    assert peers.main([str(out), *checkouts, "--tiny", *words]) == 0
    timm, nanogpt = rows_of(out)
    assert (timm["rate"], timm["unit"], timm["seconds"]) == (50.0, "images/s", 5 * 2 / 50.0)
    assert nanogpt["rate"] == pytest.approx(12 * 1024 / 0.024)
    assert nanogpt["seconds"] == pytest.approx(20 * 0.024)
    assert {timm["version"], nanogpt["version"]} == {"timm 0123456789ab", "nanoGPT 0123456789ab"}


def test_a_program_that_fails_has_a_row_with_its_reason(
    peers: ModuleType, checkouts: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "peers.jsonl"
    assert peers.main([str(out), *checkouts, "--tiny", "--only", "timm"]) == 1
    rows = rows_of(out)
    assert [(row["mode"], row["rate"]) for row in rows] == [("train", 50.0)] * 2 + [("infer", None)] * 2
    assert rows[-1]["reason"] == "CUDA error: no kernel image"


def test_preparing_runs_the_programs_and_writes_no_row(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    assert peers.main([str(out), *checkouts, "--tiny", "--prepare", "--only", "nanoGPT"]) == 0
    assert peers.main([str(out), *checkouts, "--tiny", "--prepare", "--only", "infer"]) == 1
    assert "not prepared: timm benchmark.py: resnet50 infer" in capsys.readouterr().err
    assert not out.exists()


def test_a_name_that_no_program_has_is_refused_with_the_names(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peers.main([str(tmp_path / "out"), *checkouts, "--only", "resnet51"]) == 2
    assert "timm benchmark.py: resnet50 train batch 512" in capsys.readouterr().err


def test_every_row_is_a_workload_and_a_model_of_timm(peers: ModuleType) -> None:
    timm = pytest.importorskip("timm")

    from prony_node.workloads import WORKLOADS

    assert {row.workload for row in peers.TIMM} <= set(WORKLOADS)
    assert {row.model for row in peers.TIMM} <= set(timm.list_models())
