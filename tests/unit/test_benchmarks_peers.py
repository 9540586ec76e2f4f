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
    words = ["--only", "eager: resnet50 batch", "--only", "nanoGPT"]
    assert peers.main([str(out), *checkouts, "--tiny", "--repeats", "1", *words]) == 0
    timm, nanogpt = rows_of(out)
    assert (timm["rate"], timm["unit"], timm["seconds"]) == (50.0, "images/s", 5 * 2 / 50.0)
    assert nanogpt["rate"] == pytest.approx(12 * 1024 / 0.024)
    assert nanogpt["seconds"] == pytest.approx(20 * 0.024)
    assert timm["settings"].startswith("--model test_resnet --bench train")
    assert timm["version"].startswith("timm 0123456789ab, torch ")
    assert (timm["workload"], nanogpt["workload"]) == ("resnet50 batch_size=2", "gpt-117m batch_size=12")


def test_a_program_that_fails_is_named_with_its_reason_and_has_no_row(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    assert peers.main([str(out), *checkouts, "--tiny", "--repeats", "1", "--only", "timm"]) == 1
    assert [row["name"] for row in rows_of(out)] == ["timm benchmark.py, eager", "timm benchmark.py, compiled"]
    assert "mode=infer batch_size=2: failed: CUDA error: no kernel image" in (capsys.readouterr().out)


def test_each_program_has_three_repeats_in_rounds_and_one_that_failed_is_not_started_again(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    assert peers.main([str(out), *checkouts, "--tiny", "--only", "eager", "--only", "nanoGPT"]) == 1
    names = ["timm benchmark.py, eager", "nanoGPT bench.py"]
    assert [row["name"] for row in rows_of(out)] == names * 3
    printed = capsys.readouterr().out
    assert (printed.count("mode=infer batch_size=2: failed"), printed.count(", run 3: ")) == (1, 2)
    with pytest.raises(SystemExit):
        peers.main([str(out), *checkouts, "--repeats", "0"])


def test_preparing_runs_the_programs_and_writes_no_row(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    assert peers.main([str(out), *checkouts, "--tiny", "--prepare", "--only", "nanoGPT"]) == 0
    assert peers.main([str(out), *checkouts, "--tiny", "--prepare", "--only", "infer"]) == 1
    assert "not prepared: timm benchmark.py, eager: resnet50 mode=infer" in capsys.readouterr().err
    assert not out.exists()


def test_a_name_that_no_program_has_is_refused_with_the_names(
    peers: ModuleType, checkouts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peers.main([str(tmp_path / "out"), *checkouts, "--only", "resnet51"]) == 2
    assert "timm benchmark.py, eager: resnet50 batch_size=512" in capsys.readouterr().err


def test_every_row_is_a_trial_and_a_model_of_timm(peers: ModuleType) -> None:
    timm = pytest.importorskip("timm")

    from prony.study.request import parse_trial

    for row in peers.TIMM:
        target, *words = row.trial.split()
        parse_trial(target, words)
    assert {row.model for row in peers.TIMM} <= set(timm.list_models())
