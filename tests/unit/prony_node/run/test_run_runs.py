"""Whatever becomes of a rank, its supervisor leaves one valid record and no process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from processes import processes_of
from prony_node.contract import Plan, Trial, files, read_record
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import Energy
from prony_node.run import supervisor

STAND_IN = Path(__file__).parents[3] / "stand_in"
SRC = Path(__file__).parents[4] / "src"


def environment(wish: str = "", **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(SRC), str(STAND_IN)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    return {**kept, "PYTHONPATH": path, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": wish, **more}


def write_plan(tmp_path: Path, **changes: Any) -> Path:
    plan = Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny", {"steps": 3}), **changes)
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(plan.to_json()))
    return path


def start(plan: Path, out: Path, wish: str = "", **more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "prony_node", str(plan), str(out)]
    return subprocess.Popen(argv, env=environment(wish, **more), stderr=subprocess.PIPE, text=True)


def make_run(tmp_path: Path, wish: str = "", **changes: Any) -> tuple[int, dict[str, Any], str]:
    out = tmp_path / "out"
    process = start(write_plan(tmp_path, **changes), out, wish)
    _, said = process.communicate(timeout=300)
    record = read_record(out)
    assert record is not None
    assert processes_of(out) == []
    return process.returncode, record, said


def wait_for_phase(out: Path, phase: str) -> None:
    for _ in range(2000):
        path = out / files.PROGRESS
        if path.exists() and f'"phase": "{phase}"' in path.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"the run never came to {phase}")


def test_a_good_run_merges_every_part(tmp_path: Path) -> None:
    code, record, _ = make_run(tmp_path)
    assert (code, record["status"], record["failure"]) == (0, "ok", None)
    assert record["metrics"]["throughput"]["value"] == 5.0
    assert record["trial"]["effective"]["batch_size"] == 4
    assert record["trial"]["effective_hash"] not in (None, record["trial"]["hash"])
    assert record["facts"]["devices"][0]["name"] == "stand-in"
    assert record["stop"]["reason"] == "tolerance"
    assert {check["name"] for check in record["checks"]} >= {"steady", "throttled"}


@pytest.mark.parametrize(
    ("wish", "kind", "code", "says"),
    [
        ("build=crash", "exception", 1, "ValueError: the stand-in was asked to crash"),
        ("measure=kill", "killed", 1, "SIGKILL in phase measure after 20 steps"),
        ("import=segfault", "killed", 1, "SIGSEGV before its first line of progress"),
        ("cold_start=leave", "exception", 1, "without a result"),
        ("build=missing-library", "missing-library", 1, "asked for missing-library"),
        ("build=request", "request", 2, "asked for request"),
        ("measure=nonsense", "exception", 1, "does not make a record"),
    ],
)
def test_every_bad_end_is_a_failure_record(tmp_path: Path, wish: str, kind: str, code: int, says: str) -> None:
    got, record, said = make_run(tmp_path, wish)
    assert (got, record["status"], record["failure"]["kind"]) == (code, "failed", kind)
    assert says in record["failure"]["message"]
    assert "Traceback" not in said


def test_a_hung_rank_is_ended_with_the_place_where_it_stood(tmp_path: Path) -> None:
    code, record, _ = make_run(tmp_path, "measure=hang", hung_after_s=5.0)
    assert (code, record["failure"]["kind"]) == (1, "hung")
    assert "in phase measure after 20 steps" in record["failure"]["message"]
    assert "in misbehave" in record["failure"]["message"].splitlines()[0]


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    _, record, _ = make_run(tmp_path, "measure=deaf", hung_after_s=1.0)
    assert record["failure"]["kind"] == "hung"


def test_the_time_limit_ends_a_run(tmp_path: Path) -> None:
    _, record, _ = make_run(tmp_path, "measure=hang", time_limit_s=1.5)
    assert record["failure"]["kind"] == "time-limit"
    assert "1.5 s" in record["failure"]["message"]


def test_a_crash_after_the_result_does_not_cost_the_measurement(tmp_path: Path) -> None:
    code, record, _ = make_run(tmp_path, "end=segfault")
    assert (code, record["status"]) == (0, "ok")
    warned = [check for check in record["checks"] if check["name"] == "supervisor"]
    assert warned[0]["level"] == "warn"
    assert "SIGSEGV" in warned[0]["message"]


def test_what_left_the_ranks_group_is_ended_too(tmp_path: Path) -> None:
    make_run(tmp_path, "measure=orphan")
    pid = int((tmp_path / "out" / "orphan.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_supervisor_writes_a_record_that_says_so(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    process = start(write_plan(tmp_path), out, "measure=hang")
    wait_for_phase(out, "measure")
    process.send_signal(number)
    process.communicate(timeout=120)
    record = read_record(out)
    assert record is not None
    assert (process.returncode, record["status"]) == (130, "interrupted")
    assert signal.Signals(number).name in record["failure"]["message"]
    assert processes_of(out) == []


def test_a_supervisor_whose_controller_is_gone_ends_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import os, subprocess, sys, time; os.environ['PRONY_CONTROLLER_PID'] = str(os.getpid());"
    code += "subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(600)"
    supervisor_argv = [sys.executable, "-m", "prony_node", str(write_plan(tmp_path)), str(out)]
    controller = subprocess.Popen([sys.executable, "-c", code, *supervisor_argv], env=environment("measure=hang"))
    wait_for_phase(out, "measure")
    controller.kill()
    controller.wait()
    for _ in range(1200):
        if (out / files.RECORD).exists() and not processes_of(out):
            break
        time.sleep(0.05)
    record = read_record(out)
    assert record is not None
    assert record["status"] == "interrupted"
    assert "controller went away" in record["failure"]["message"]
    assert processes_of(out) == []


def refused(plan: Path, out: Path) -> str:
    process = start(plan, out)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in said
    return said


def test_wrong_plans_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = json.loads(write_plan(tmp_path).read_text())
    for change, says in (
        ({"schema": "prony.record/1"}, "expected a document of schema prony.plan"),
        ({"schema": "prony.plan/99"}, "newer Prony"),
        ({"trial": {"workload": "gpt-tinny", "settings": {}}}, "did you mean 'gpt-tiny'"),
        ({"trial": {"workload": "gpt-tiny", "settings": {"stepps": 3}}}, "did you mean 'steps'"),
    ):
        plan = tmp_path / "wrong.json"
        plan.write_text(json.dumps({**good, **change}))
        assert says in refused(plan, out)
    assert "no such file" in refused(tmp_path / "absent.json", out)
    assert not out.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = (tmp_path / "out" / files.RECORD).read_bytes()
    assert "already holds a record" in refused(tmp_path / "asked.json", tmp_path / "out")
    assert (tmp_path / "out" / files.RECORD).read_bytes() == before
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.txt").write_text("years of work")
    assert "not a run folder" in refused(tmp_path / "asked.json", strange)
    assert [path.name for path in strange.iterdir()] == ["thesis.txt"]


def test_a_full_disk_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny"))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ending = supervisor.Ending(Failure("exception", "it broke"), [], Energy())
    assert supervisor._write_record(plan, tmp_path, ending, "2026-01-01T00:00:00+00:00") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_question() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prony_node", "--help"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0
    for word in ("PLAN OUT", "doctor", "devices", "fingerprint", "130"):
        assert word in done.stdout


def test_the_supervisor_imports_no_torch() -> None:
    code = "import sys, prony_node.run.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
