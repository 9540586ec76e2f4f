"""A process that prints without end fills neither a disk nor a record."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prony_node.contract import Plan, Trial, files, read_record
from prony_node.contract.files import MOST_BYTES, limit_logs, logs_of_run

ROOT = Path(__file__).parents[2]
GAP = re.compile(rb"\[prony: ([0-9,]+) bytes were left out here")

LOST = "what is written between two calls of ours to the system may be lost uncounted, and no more"


def left_out(content: bytes) -> int:
    """Bytes that a log says to have left out, in its one place."""
    (count,) = GAP.findall(content)
    return int(count.replace(b",", b""))


def test_a_rank_that_prints_200_mb_leaves_a_log_of_64(tmp_path: Path) -> None:
    plan, out = tmp_path / "asked.json", tmp_path / "out"
    plan.write_text(json.dumps(Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny")).to_json()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    environment = {**kept, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": "measure=flood"}
    argv = [sys.executable, "-m", "prony_node", str(plan), str(out)]
    subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)
    record = read_record(out)
    assert record is not None
    assert record["status"] == "ok"
    log = (out / files.LOG).read_bytes()
    assert MOST_BYTES // 2 < len(log) <= MOST_BYTES
    assert log.startswith(b"0" * 98 + b"0\n" + b"0" * 98 + b"1\n"), "the head is kept"
    assert log.endswith(b"%099d\n" % (200 * 10_000 - 1)), "and the tail"
    assert left_out(log) + len(log) == pytest.approx(200_000_000, rel=0.05), LOST


def test_the_supervisor_of_a_run_bounds_the_logs_of_its_job(tmp_path: Path) -> None:
    job = tmp_path / ".jobs" / "prony-20260101T000000-abcdef"
    job.mkdir(parents=True)
    for name in ("job.log", "run-000.log", "run-001.log"):
        with (job / name).open("wb") as log:
            log.truncate(2 * MOST_BYTES)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    environment = {**kept, "PRONY_RANK_MODULE": "stand_in_rank", "PRONY_RUN_LOG": str(job / "run-000.log")}
    plan = json.dumps(Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny")).to_json())
    argv = [sys.executable, "-m", "prony_node", "-", str(tmp_path / "gpt-tiny-1")]
    subprocess.run(argv, input=plan.encode(), env=environment, capture_output=True, timeout=120, check=True)
    sizes = {path.name: path.stat().st_size <= MOST_BYTES for path in job.iterdir()}
    assert sizes == {"job.log": True, "run-000.log": True, "run-001.log": False}, "another run's is not ours"


def test_a_log_is_cut_while_someone_writes_to_it_and_counts_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone writes whenever a log has been read, up to a point, which makes every cut catch up."""
    path, numbers = tmp_path / files.LOG, itertools.count()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(lines: int) -> None:
        for number in itertools.islice(numbers, lines):
            os.write(log, b"%09d\n" % number)

    def read(*asked: int) -> bytes:
        content = really_read(*asked)
        write(next(late, 0))
        return content

    really_read = files._read
    monkeypatch.setattr(files, "_read", read)
    for _ in range(20):
        late = iter([3000, 7, 500, 5000])
        write(5000)
        limit_logs([path], most_bytes=40_000)
        assert next(late, None) is None, "otherwise nobody wrote while it was cut"
    os.close(log)
    content, lines = path.read_bytes(), next(numbers)
    assert len(content) <= 40_000
    assert content.startswith(b"000000000\n000000001\n")
    assert content.endswith(b"%09d\n" % (lines - 1))
    (said,) = re.findall(rb"\n\[prony: [^]]*\]\n", content)
    assert left_out(content) + len(content) - len(said) == 10 * lines


def test_a_log_that_another_thread_writes_to_keeps_its_head_and_its_end(tmp_path: Path) -> None:
    """Lines between two calls of ours to the system may be lost uncounted: how many is for the scheduler to say."""
    path, lines = tmp_path / files.LOG, 100_000
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write() -> None:
        for number in range(lines):
            os.write(log, b"%09d\n" % number)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        limit_logs([path], most_bytes=40_000)
    writer.join()
    os.write(log, b"the end\n")
    limit_logs([path], most_bytes=40_000)
    os.close(log)
    content = path.read_bytes()
    assert len(content) <= 40_000
    assert content.startswith(b"000000000\n000000001\n")
    assert content.endswith(b"the end\n")
    assert 0 < left_out(content) < 10 * lines


@pytest.mark.parametrize("name", [files.LAUNCHER_LOG, files.SUPERVISOR_LOG, "rank3.log"])
def test_every_log_of_a_run_is_bounded(tmp_path: Path, name: str) -> None:
    (tmp_path / "rank3").mkdir()
    (tmp_path / name).write_bytes(b"x" * 5000 + b"end")
    limit_logs(logs_of_run(tmp_path), most_bytes=1000)
    content = (tmp_path / name).read_bytes()
    assert len(content) <= 1000
    assert content.endswith(b"end")
    assert left_out(content) == 5003 - 500 - 250


def test_a_link_in_place_of_a_log_is_not_cut(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * 5000)
    (tmp_path / files.LOG).symlink_to(foreign)
    limit_logs(logs_of_run(tmp_path), most_bytes=1000)
    assert foreign.stat().st_size == 5000
