"""`prony tune` with runs of the stand-in, whose rate grows with the batch and which has no memory from 64 on."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from prony.cli.tune import tune as tune_verb
from prony.engine.search import FIRST_REPEAT
from prony.sites.locks import hold_devices
from prony.study.request import parse_trial
from prony_node.contract.errors import RequestError

ROOT = Path(__file__).parents[4]


def start(out: Path, *words: str, wish: str = "rate=batch") -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    wishes = {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": f"pace=0.01 {wish}"}
    argv = [sys.executable, "-m", "prony", "tune", "gpt-tiny", *words, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": path, **wishes}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in out.glob("*/record.json")]


def test_the_sizes_are_walked_in_one_process_and_the_best_is_confirmed_in_four_pairs(tmp_path: Path) -> None:
    done = start(tmp_path, "batch_size=2,8,32,64", "--json")
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    found: dict[str, Any] = json.loads(output)
    assert (found["verdict"], found["start"], found["winner"]) == ("better", {"batch_size": 4}, {"batch_size": 32})
    (only,) = found["confirmed"]
    assert (only["verdict"], only["pairs"]) == ("better", 4)
    assert found["cost"]["processes"] == 1 + 1 + 8, "the start, the walk, and four pairs"
    assert len(records(tmp_path)) == 1 + 8, "a screening is no record"
    assert {record["repeat"] for record in records(tmp_path)} == set(range(FIRST_REPEAT, FIRST_REPEAT + 5))
    walked = [step for step in found["path"] if step["screening"]]
    assert [step["settings"]["batch_size"] for step in walked] == [8, 32, 64]
    assert [step["failure"] for step in walked] == [None, None, "out-of-memory"]
    assert "batch_size=32 instead of 4" in found["changes_mathematics"][0]
    assert found["command"] == ["prony", "run", "gpt-tiny", "batch_size=32"]
    told = [line for line in errors.splitlines() if line.endswith(" spent")]
    assert len(told) == len(found["path"]), "each result says what it gave, and how much of the budget is spent"


def test_a_setting_with_a_failed_check_never_wins_and_the_printed_command_runs(tmp_path: Path) -> None:
    done = start(tmp_path, "batch_size=2,8,32", "fused=on", wish="rate=batch checks=fail")
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    assert "failed check: parameters" in output
    assert "Use batch_size=8: 1.5x as fast as the defaults (97.1 % CI" in output
    (line,) = [line for line in output.splitlines() if line.startswith("use it: ")]
    prony, verb, *words = shlex.split(line.removeprefix("use it: "))
    assert (prony, verb) == ("prony", "run")
    assert parse_trial(words[0], words[1:]).settings == {"batch_size": 8, "fused": True}


def test_earlier_runs_are_no_advice_and_a_budget_too_small_for_pairs_decides_nothing(tmp_path: Path) -> None:
    """With three runs in the folder it once ran nothing and gave advice all the same."""
    done = start(tmp_path, "batch_size=2,8", "--budget", "4s", "--json")
    output, errors = done.communicate(timeout=120)
    assert done.returncode == 3, errors
    found = json.loads(output)
    assert (found["verdict"], found["winner"]) == ("not decided", None)
    before = len(records(tmp_path))
    again = start(tmp_path, "batch_size=2,8", "--budget", "4s")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 3
    assert len(records(tmp_path)) > before
    assert "Not decided: " in output
    assert "use it" not in output


def test_an_interrupted_search_says_so(tmp_path: Path) -> None:
    first = start(tmp_path, "batch_size=2,8,32,64", "--json")
    while len(records(tmp_path)) < 3:
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    output, errors = first.communicate(timeout=120)
    assert first.returncode == 130, errors
    found = json.loads(output)
    assert (found["interrupted"], found["winner"]) == (True, None)


def test_two_searches_at_once_make_no_run_under_one_number(tmp_path: Path) -> None:
    both = [start(tmp_path, "batch_size=2,8", "--share", "--budget", "1s") for _ in range(2)]
    said = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [3, 3], said
    made = [(record["trial"]["hash"], record["repeat"]) for record in records(tmp_path)]
    assert len(made) == len(set(made)) == 2


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ([], {"goal": "speed"}, "goal"),
        ([], {"goal": "time-to-quality"}, "until="),
        ([], {"within": ["memory<40"]}, "memory<40GiB"),
        ([], {"budget": "soon"}, "budget soon"),
        (["batch_size=auto"], {}, "largest that fits"),
        (["batch_sise=2..8"], {}, "batch_size"),
    ],
)
def test_a_wrong_request_starts_nothing(tmp_path: Path, words: list[str], options: dict[str, Any], said: str) -> None:
    given = {"goal": "throughput", "within": [], "budget": "1m", **options}
    with pytest.raises(RequestError, match=said):
        tune_verb("gpt-tiny", words, out=tmp_path, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("measure=crash", "the run with the defaults failed (exception)"),
        ("rate=batch checks=fail", "the run with the defaults failed a check (parameters: invented)"),
    ],
)
def test_a_start_that_fails_ends_the_search_with_its_reason(tmp_path: Path, wish: str, said: str) -> None:
    words = ["batch_size=2,4"] if "crash" in wish else ["batch_size=16", "fused=on,off"]
    process = start(tmp_path, *words, wish=wish)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said in errors


def test_a_device_in_use_is_refused_unless_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prony.engine.search._Tuning.make", lambda self: self._outcome())  # in place of the runs
    asked: dict[str, Any] = {"goal": "throughput", "within": [], "budget": "1m", "out": tmp_path}
    with hold_devices({"cpu"}, "another study"):
        with pytest.raises(RequestError, match=r"cpu is in use by process \d+ \(another study\).*add --share"):
            tune_verb("gpt-tiny", ["device=cpu", "batch_size=1..4"], **asked)
        for words in (["device=cuda:1"], ["device=cpu"]):
            with pytest.raises(typer.Exit):  # the search, which found nothing
                tune_verb("gpt-tiny", words, share=words == ["device=cpu"], **asked)
    with pytest.raises(RequestError, match="no meaning with mode=infer"):
        tune_verb("gpt-tiny", ["mode=infer", "optimizer=sgd,adam"], share=True, **asked)
