"""`prony run` from the words to the record, with a stand-in for the rank."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from prony.cli.present import exit_code
from prony.cli.progress import LiveDisplay, PlainDisplay, describe, make_display
from prony.cli.tables import print_repeats
from prony.sites.collect import ProgressLine
from prony.study.request import make_plan, parse_trial
from prony_node.contract import files, read_record
from prony_node.contract.record import Check, Record, new_record, parse_record
from prony_node.contract.trial import Stop

ROOT = Path(__file__).parents[4]


def start(out: Path, *words: str, wish: str = "", **more: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    environment = {**os.environ, "PYTHONPATH": path, "PRONY_RANK_MODULE": "stand_in_rank", "COLUMNS": "200"}
    environment |= {"PRONY_STAND_IN": wish, **more}
    argv = [sys.executable, "-m", "prony", *words, "--out", str(out)]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def prony(out: Path, *words: str, wish: str = "", **more: str) -> tuple[int, str, str]:
    process = start(out, *words, wish=wish, **more)
    stdout, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr, stderr
    return process.returncode, stdout, stderr


def test_json_is_the_record_alone(tmp_path: Path) -> None:
    code, stdout, stderr = prony(tmp_path, "run", "gpt-tiny", "--json", "steps=3", "seed=7")
    record = json.loads(stdout)
    assert (code, record["schema"], record["status"]) == (0, "prony.record/3", "ok")
    assert record["trial"]["settings"] == {"steps": 3, "seed": 7}
    assert record == read_record(tmp_path / record["id"])
    assert "measuring" in stderr


def test_a_person_gets_the_rate_and_where_the_folder_is(tmp_path: Path) -> None:
    code, stdout, _ = prony(tmp_path, "run", "gpt-tiny", "steps=3")
    assert code == 0
    assert "images/s" in stdout
    assert str(next(tmp_path.glob("gpt-tiny-*"))) in stdout


def test_options_may_stand_between_settings_and_reach_the_plan(tmp_path: Path) -> None:
    words = ["run", "--max-time", "2m", "gpt-tiny", "seed=1", "--tolerance", "3%", "steps=3", "--json"]
    _, stdout, _ = prony(tmp_path, *words)
    record = json.loads(stdout)
    assert (record["stop"]["max_time_s"], record["stop"]["tolerance"]) == (120.0, 0.03)


def test_repeats_are_fresh_runs_with_their_own_interval_beside_the_one_between(tmp_path: Path) -> None:
    code, stdout, _ = prony(tmp_path, "run", "gpt-tiny", "steps=3", "--repeats", "2")
    assert code == 0
    assert "between runs" in stdout
    assert "within a run" in stdout
    records = [read_record(folder) for folder in tmp_path.glob("gpt-tiny-*")]
    assert sorted(record["repeat"] for record in records if record) == [0, 1]


def test_seeds_are_runs_of_their_own_with_their_spread(tmp_path: Path) -> None:
    code, stdout, _ = prony(tmp_path, "run", "gpt-tiny", "steps=3", "seed=5", "--seeds", "2")
    assert code == 0
    assert "gpt-tiny steps=3: 2 seeds (5, 6)" in stdout
    records = [read_record(folder) for folder in tmp_path.glob("gpt-tiny-*")]
    assert sorted(record["trial"]["settings"]["seed"] for record in records if record) == [5, 6]


def test_no_seeds_are_refused_before_anything_starts(tmp_path: Path) -> None:
    code, _, stderr = prony(tmp_path, "run", "gpt-tiny", "--seeds", "0")
    assert code == 2
    assert "--seeds 0 is not possible: give at least 1" in stderr
    assert list(tmp_path.glob("gpt-tiny-*")) == []


def test_a_failed_run_exits_with_1_and_says_why(tmp_path: Path) -> None:
    code, stdout, stderr = prony(tmp_path, "run", "gpt-tiny", wish="measure=crash")
    assert code == 1
    assert "asked to crash" in stdout + stderr


def test_a_request_that_this_machine_refuses_exits_with_2(tmp_path: Path) -> None:
    code, _, stderr = prony(tmp_path, "run", "gpt-tiny", wish="build=request")
    assert code == 2
    assert "asked for request" in stderr


def test_ctrl_c_leaves_a_record_that_says_so(tmp_path: Path) -> None:
    process = start(tmp_path, "run", "gpt-tiny", "--json", "--repeats", "3", wish="measure=hang")
    wait_for(tmp_path, "measure")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    records = json.loads(stdout)
    assert process.returncode == 130
    assert [record["status"] for record in records] == ["interrupted"]


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    process = start(tmp_path, "run", "gpt-tiny", "--json", wish="measure=deaf")
    wait_for(tmp_path, "measure")
    time.sleep(0.5)  # it says so before it is deaf
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(stdout)["status"] == "interrupted"


def test_a_run_left_by_a_crash_is_collected_by_the_next(tmp_path: Path) -> None:
    process = start(tmp_path, "run", "gpt-tiny", wish="measure=hang")
    wait_for(tmp_path, "measure")
    folder = next(tmp_path.glob("gpt-tiny-*"))
    holder = files.read_json(folder / files.SUPERVISOR)
    os.kill(process.pid, signal.SIGSTOP)  # so that the controller cannot collect it itself
    os.kill(holder["pid"], signal.SIGKILL)
    process.kill()
    process.communicate(timeout=30)
    assert read_record(folder) is None
    prony(tmp_path, "run", "gpt-tiny", "steps=3", "--json")
    record = read_record(folder)
    assert record is not None
    assert record["failure"]["kind"] == "lost"


def test_a_suite_ends_in_a_table_and_a_report(tmp_path: Path) -> None:
    code, stdout, stderr = prony(tmp_path, "run", "quick", "device=cpu", "--max-time", "1s")
    assert code == 0
    assert "wideresnet" in stdout
    assert "resnet50" in stdout
    assert (tmp_path / "report.html").exists(), stderr
    *_, doubts, report, folders = stdout.splitlines()
    assert doubts.startswith("doubts: ")
    assert (report, folders) == (f"report: {tmp_path}/report.html", f"run folders: {tmp_path}")
    assert "best: " not in stdout, "on a CPU no two of its trials are of one workload and mode"


def test_several_runs_of_a_trial_end_in_a_summary(tmp_path: Path) -> None:
    code, stdout, _ = prony(tmp_path, "run", "gpt-tiny", "steps=3", "--repeats", "2")
    assert code == 0
    _, result, doubts, page, folders = stdout.splitlines()[-5:]
    assert result.startswith("result: gpt-tiny steps=3: ")
    assert "(95 % CI between 2 runs)" in result
    assert doubts.startswith("doubts: ")
    assert page.startswith("a page with plots: prony report ")
    assert folders == f"run folders: {tmp_path}"


def wait_for(root: Path, phase: str) -> None:
    for _ in range(600):
        for path in root.glob(f"*/{files.PROGRESS}"):
            if f'"phase": "{phase}"' in path.read_text():
                return
        time.sleep(0.05)
    raise AssertionError(f"no run came to {phase}")


LINE = ProgressLine(
    "measure", steps=50, rate=12650.4, unit="images/s", half_width=0.018, window_s=3.94, target=0.01, elapsed_s=4.2,
    left_s=7.6,
)  # fmt: skip


def test_progress_says_phase_rate_interval_and_time_left() -> None:
    assert describe(LINE) == "measuring, 12,650 images/s ± 1.8 %, 3.9 s (target 1 %), 4 s, about 8 s left"
    assert "± 110 %, 3.9 s (target 1 %)" in describe(replace(LINE, half_width=1.1))
    assert describe(ProgressLine("cold_start", steps=3)) == "cold start, 3 steps"
    assert describe(ProgressLine("build", note="compiling")) == "building, compiling"


def test_plain_progress_is_a_few_lines_and_live_progress_is_for_terminals() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    display = make_display(console)
    assert isinstance(display, PlainDisplay)
    display.begin("gpt-tiny")
    for _ in range(100):
        display.update(LINE)
    display.end()
    assert len(out.getvalue().splitlines()) == 2
    assert isinstance(make_display(Console(file=out, force_terminal=True)), LiveDisplay)


def test_the_live_line_shows_brackets_as_they_are() -> None:
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=200, color_system=None))
    display.begin("[1/2] gpt-tiny")
    display.update(LINE)
    display.note("a note [bold]")
    display.end()
    assert "[1/2] gpt-tiny" in out.getvalue()
    assert "12,650 images/s" in out.getvalue()
    assert "a note [bold]" in out.getvalue()


def record_with(status: str, kind: str | None = None, rate: float | None = None) -> dict[str, Any]:
    failure = None if kind is None else {"kind": kind, "message": kind}
    rated = {"value": rate, "low": None, "high": None, "unit": "images/s", "scope": "all devices", "source": "counted"}
    metrics = {} if rate is None else {"throughput": rated}
    trial = {"workload": "gpt-tiny", "settings": {}}
    return {"status": status, "failure": failure, "metrics": metrics, "trial": trial}


def typed(status: str, kind: str | None = None, rate: float | None = None) -> Record:
    plan = make_plan(parse_trial("gpt-tiny", []), Stop(), ())
    return parse_record({**new_record(plan, status=status, started="", ended=""), **record_with(status, kind, rate)})


def test_exit_codes() -> None:
    good, bad = typed("ok"), typed("failed", "killed")
    refused, stopped = typed("failed", "request"), typed("interrupted", "interrupted")
    assert exit_code([good, good], False) == 0
    assert exit_code([good, bad, refused], False) == 1
    assert exit_code([refused, refused], False) == 2
    assert exit_code([good, refused], False) == 1, "2 says that nothing ran"
    doubtful = replace(good, checks=(Check("losses", "fail", "a loss is not finite"),))
    assert exit_code([doubtful, refused], False) == 1
    assert exit_code([bad, stopped], False) == 130
    assert exit_code([good], True) == 130


def test_one_run_has_no_interval_between_runs() -> None:
    out = io.StringIO()
    print_repeats(Console(file=out, width=200), [typed("ok", rate=5.0)])
    assert out.getvalue() == ""
    two = [typed("ok", rate=rate) for rate in (5.0, 5.2)]
    print_repeats(Console(file=out, width=200), two)
    assert "between runs: 5.099 images/s, 95 % interval" in out.getvalue()


def test_a_sustained_window_is_not_cut_below_what_publishing_needs_nor_lengthened_in_silence(tmp_path: Path) -> None:
    code, _, stderr = prony(tmp_path, "run", "gpt-tiny", "--sustained", "--max-time", "3s")
    assert code == 2
    assert "--sustained measures for 20 s or more" in stderr
