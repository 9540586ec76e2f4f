"""`prony tune` with runs of the stand-in, whose rate grows with the batch and which has no memory from 64 on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from prony.cli.tune_history import FIRST_REPEAT, History, read_history

from prony.cli.tune import tune as tune_verb
from prony.launch.lock import hold_devices
from prony.store import Store
from prony_node.contract.errors import RequestError
from prony_node.contract.trial import Trial

ROOT = Path(__file__).parents[4]


def start(out: Path, *words: str, wish: str = "rate=batch") -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    wishes = {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": f"pace=0.01 {wish}"}
    argv = [sys.executable, "-m", "prony", "tune", "gpt-tiny", *words, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": path, **wishes}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(out: Path) -> set[str]:
    records = [json.loads(path.read_text()) for path in out.glob("*/record.json")]
    return {record["id"] for record in records if record["status"] != "interrupted"}


def test_an_interrupted_search_is_gone_on_with_and_ends_with_the_best_confirmed(tmp_path: Path) -> None:
    words = ("batch_size=2,8,32,64", "--json")
    first = start(tmp_path, *words)
    while len(finished(tmp_path)) < 2:
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    before = finished(tmp_path)
    second = start(tmp_path, *words)
    output, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    found: dict[str, Any] = json.loads(output)
    stored = {step["run"] for step in found["path"] if step["stored"]}
    assert stored == before, "what was run before is used, and costs nothing"
    assert len(finished(tmp_path)) == len(before) + found["cost"]["runs"]
    assert (found["start"], found["winner"]) == ({"batch_size": 4}, {"batch_size": 32})
    assert found["confirmed"]["verdict"] == "better"
    assert found["cost"]["energy_j"] is None
    assert "batch_size=32 instead of 4" in found["changes_mathematics"][0]
    assert "out-of-memory" in {step["failure"] for step in found["path"]}
    told = [line for line in errors.splitlines() if line.endswith(" spent")]
    assert len(told) == found["cost"]["runs"], "each run says what it gave, and what of the budget is spent"
    assert "failed (out-of-memory)" in said[1] + errors


def test_two_searches_at_once_share_their_short_runs_and_make_none_twice(tmp_path: Path) -> None:
    words = ("batch_size=2,8,32,64", "--share", "--json")
    both = [start(tmp_path, *words) for _ in range(2)]
    said = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*/record.json")]
    made = [(record["trial"]["hash"], record["repeat"]) for record in records]
    assert len(made) == len(set(made)), "a trial and a repeat are one run"
    found: list[dict[str, Any]] = [json.loads(output) for output, _ in said]
    assert [one["winner"] for one in found] == [{"batch_size": 32}] * 2
    assert [one["confirmed"]["verdict"] for one in found] == ["better"] * 2
    assert len(records) == sum(one["cost"]["runs"] for one in found), "each run is the cost of one of them"
    short = [step["run"] for one in found for step in one["path"] if not step["why"].startswith("A/B")]
    assert len(short) > len(set(short)), "what one has made the other takes"
    assert "another search" in said[0][1] + said[1][1]


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ([], {"goal": "speed"}, "goal"),
        ([], {"goal": "time-to-quality"}, "until="),
        ([], {"within": ["memory<40"]}, "memory<40GiB"),
        ([], {"budget": "soon"}, "--budget"),
        (["batch_size=auto"], {}, "largest that fits"),
        (["batch_sise=2..8"], {}, "batch_size"),
    ],
)
def test_a_wrong_request_starts_nothing(tmp_path: Path, words: list[str], options: dict[str, Any], said: str) -> None:
    given = {"goal": "throughput", "within": [], "budget": "1m", **options}
    with pytest.raises(RequestError, match=said):
        tune_verb("gpt-tiny", words, out=tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_ends_the_search_with_its_reason(tmp_path: Path) -> None:
    process = start(tmp_path, "batch_size=2,4", wish="measure=crash")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the start itself failed (exception)" in errors
    again = start(tmp_path, "batch_size=2,4", "--budget", "1s", "--json")
    output, errors = again.communicate(timeout=120)
    assert again.returncode == 0, "what failed once is no reason to fail for ever: " + errors
    assert json.loads(output)["start"] == {"batch_size": 4}


def test_a_device_in_use_is_refused_unless_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prony.cli.tune._search", lambda *_: (None, None, None))  # in place of the runs
    asked: dict[str, Any] = {"goal": "throughput", "within": [], "budget": "1m", "out": tmp_path}
    with hold_devices({"cpu"}, "another study"):
        with pytest.raises(RequestError, match=r"cpu is in use by process \d+ \(another study\).*add --share"):
            tune_verb("gpt-tiny", ["device=cpu", "batch_size=1..4"], **asked)
        for words in (["device=cuda:1"], ["device=cpu"]):
            with pytest.raises(typer.Exit):  # the search, which found nothing
                tune_verb("gpt-tiny", words, share=words == ["device=cpu"], **asked)
    with pytest.raises(RequestError, match="no meaning with mode=infer"):
        tune_verb("gpt-tiny", ["mode=infer", "optimizer=sgd,adam"], share=True, **asked)


def test_a_run_that_was_lost_says_nothing_of_its_trial(
    root: Path, get_record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = get_record("b00f07")
    monkeypatch.setattr("prony.cli.tune_history.ask_node", lambda *_: record["fingerprint"])
    trial = Trial(record["trial"]["workload"], record["trial"]["settings"])
    assert [made.record["id"] for made in read_history(root, trial.workload).runs(trial)] == [record["id"]]
    record["failure"]["kind"] = "lost"
    (root / record["id"] / "record.json").write_text(json.dumps(record), encoding="utf-8")
    Store(root).rebuild()
    assert read_history(root, trial.workload).runs(trial) == []


def test_only_stored_runs_that_took_turns_are_an_a_b() -> None:
    a, b = Trial("gpt-tiny", {}), Trial("gpt-tiny", {"batch_size": 8})

    def record(trial: Trial, minute: int) -> dict[str, Any]:
        started = f"2026-01-01T00:{minute:02}:00+00:00"
        stop = {"max_time_s": 6.0}
        return {"id": str(minute), "trial": {"hash": trial.hash}, "status": "ok", "started": started, "stop": stop}

    turns = History([record(a, 1), record(b, 2), record(b, 3), record(a, 4)]).interleaved(a, b, 6.0)
    assert [len(turns[side]) for side in ("start", "winner")] == [2, 2]
    apart = History([record(a, 1), record(a, 2)]).interleaved(a, b, 6.0)
    assert not any(apart.values())
    assert History().next_repeat(a) == FIRST_REPEAT
