"""benchmarks/peer_programs.py runs other people's programs, and writes lines that the headline table reads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TIMM = """
import json, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert "--torchcompile" in sys.argv and words["--amp"] == "--amp-dtype", sys.argv
kind = "train" if "train" in sys.argv else "infer"
print("a log line")
print("--result")
print(json.dumps({"model": "resnet50", kind + "_samples_per_sec": 4259.5, kind + "_step_time": 120.0}, indent=4))
"""
NANOGPT = "print('19/20 loss: 10.9'); print('time per iteration: 26.1000ms, MFU: 40.00%')"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in ("scripts", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    import peer_programs

    monkeypatch.setattr(peer_programs.metadata, "version", lambda name: "1.2.3")
    return peer_programs


def test_a_program_that_ran_has_its_line_and_one_that_failed_says_why(
    programs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import headline_table

    for name, text in {
        "timm/benchmark.py": TIMM,
        "nano/bench.py": NANOGPT,
        "bad/bench.py": "raise OSError('no room')",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    out = tmp_path / "out" / "headline-1.peers.jsonl"
    words = [
        str(out),
        "--device",
        "cpu",
        "--timm",
        str(tmp_path / "timm"),
        "--timm-commit",
        "abc",
        "--only",
        "resnet50",
    ]
    assert programs.main(words) == 0
    nano = [str(out), "--device", "cpu", "--nanogpt-commit", "def", "--nanogpt"]
    assert programs.main([*nano, str(tmp_path / "nano")]) == 0
    assert programs.main([*nano, str(tmp_path / "bad")]) == 1
    assert "nanoGPT bench.py: gpt-117m batch_size=12: failed: exit 1: OSError: no room" in capsys.readouterr().out
    train, infer, gpt = headline_table.read_peers(out)
    assert [train.workload, infer.workload] == ["resnet50 batch_size=512", "resnet50 mode=infer batch_size=256"]
    assert (train.rate, train.unit, train.seconds, train.version) == (4259.5, "images/s", 36.0, "1.2.3, script of abc")
    assert (gpt.rate, gpt.unit) == (pytest.approx(12 * 1024 / 0.0261), "tokens/s")


def test_each_program_has_the_work_of_a_headline_row(programs: ModuleType) -> None:
    from device_results import read_trials

    rows = {trial.hash for trial in read_trials(ROOT / "scripts/trials/headline.txt")}
    options = programs.argparse.Namespace(timm=Path(), nanogpt=Path(), trainer=True)
    peers = [programs.Peer("", "", one.workload, "", 1.0, "", 1.0, "") for one in programs.programs(options)]
    assert len(peers) == 8
    assert {peer.trial.hash for peer in peers} <= rows


def test_nothing_to_run_is_refused(programs: ModuleType, tmp_path: Path) -> None:
    assert programs.main([str(tmp_path / "peers.jsonl")]) == 2
