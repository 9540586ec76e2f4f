"""A local run: started, followed, interrupted, collected; one record whatever happens."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from prony.sites.collect import ProgressLine, ProgressTail, collect, collect_all, is_being_made, wait_for_left
from prony.sites.local import LocalRun
from prony.sites.node import ask_node, node_environment, node_python, supervisor_argv, write_node, write_node_zip
from prony_node.contract import RECORD_SCHEMA, Plan, RequestError, Trial, files, read_record
from prony_node.contract.machine import identify
from prony_node.contract.record import parse_record
from prony_node.contract.run_folder import SUPERVISOR, has_manifest, write_manifest
from prony_node.contract.typed import encode

ROOT = Path(__file__).parents[4]
PLAN = Plan(run_id="gpt-tiny-1", trial=Trial("gpt-tiny", {"steps": 3}))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PRONY_RANK_MODULE", "stand_in_rank")
    monkeypatch.delenv("PRONY_PYTHON", raising=False)
    return monkeypatch


def test_the_command_of_a_supervisor() -> None:
    argv = supervisor_argv("/opt/python", Path("/runs/a/plan.json"), Path("/runs/a"))
    assert argv == ["/opt/python", "-m", "prony_node", "/runs/a/plan.json", "/runs/a"]


def test_another_python_gets_the_node_as_a_zip_in_front() -> None:
    assert node_python({"PRONY_PYTHON": "/opt/python"}) == "/opt/python"
    assert node_python({}) == sys.executable
    changed = node_environment({"PYTHONPATH": "/mine"}, Path("/runs/node.zip"))
    assert changed["PYTHONPATH"] == os.pathsep.join(["/runs/node.zip", "/mine"])
    assert "PYTHONPATH" not in node_environment({}, None)


def test_the_zip_holds_the_node_program_and_nothing_of_the_controller(tmp_path: Path) -> None:
    path = write_node(tmp_path / "node.zip")
    names = zipfile.ZipFile(path).namelist()
    assert "prony_node/__main__.py" in names
    assert {name.partition("/")[0] for name in names} <= {"prony_node", "pynvml.py"}
    before = path.stat().st_mtime_ns
    assert write_node(path) == path
    assert path.stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_is_followed_to_its_record(tmp_path: Path, stand_in: pytest.MonkeyPatch) -> None:
    run = LocalRun(PLAN, tmp_path)
    run.start()
    phases = [line.phase for line in run.follow() if line is not None]
    assert phases == ["build", "cold_start", "measure", "teardown"]
    record = run.collect()
    assert (record.status, record.id) == ("ok", PLAN.run_id)
    assert [path.name for path in tmp_path.iterdir()] == [PLAN.run_id]


def test_an_interrupted_run_says_so(tmp_path: Path, stand_in: pytest.MonkeyPatch) -> None:
    stand_in.setenv("PRONY_STAND_IN", "measure=hang")
    run = LocalRun(PLAN, tmp_path)
    run.start()
    for line in run.follow():
        if line and line.phase == "measure":
            run.interrupt()
    assert run.collect().status == "interrupted"


def test_a_killed_run_is_recorded_at_collection(tmp_path: Path, stand_in: pytest.MonkeyPatch) -> None:
    stand_in.setenv("PRONY_STAND_IN", "measure=hang")
    run = LocalRun(PLAN, tmp_path)
    run.start()
    for line in run.follow():
        if line and line.phase == "measure":
            run.kill()
    record = run.collect()
    assert record.failure is not None
    assert (record.status, record.failure.kind) == ("interrupted", "interrupted")


def test_a_python_that_is_not_there_is_refused_and_leaves_nothing(tmp_path: Path, stand_in: pytest.MonkeyPatch) -> None:
    stand_in.setenv("PRONY_PYTHON", str(tmp_path / "nowhere" / "python"))
    with pytest.raises(RequestError, match="PRONY_PYTHON"):
        LocalRun(PLAN, tmp_path / "runs").start()
    assert not (tmp_path / "runs").exists()
    with pytest.raises(RequestError, match="gave no answer"):
        ask_node("devices")


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    tail = ProgressTail(tmp_path)
    assert tail.read() == []
    with (tmp_path / files.PROGRESS).open("w") as file:
        for text, expected in (
            ('{"phase": "build"}\n{"pha', [ProgressLine("build")]),
            ('se": "measure"', []),
            ("}\nnot json\n[1]\n", [ProgressLine("measure")]),
        ):
            file.write(text)
            file.flush()
            assert tail.read() == expected


def left_folder(root: Path, identity: dict[str, object], **documents: object) -> Path:
    folder = root / PLAN.run_id
    holder = {"role": "supervisor", **identity}
    files.create_folder(folder, {files.PLAN: PLAN.to_json(), files.SUPERVISOR: holder})
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


GONE = {**identify(), "start_ticks": 1}


def test_a_lost_run_becomes_one_record_with_what_was_known(tmp_path: Path) -> None:
    facts = {"host": {"name": "a"}, "fingerprint": {"machine": "m", "software": "s"}}
    folder = left_folder(tmp_path, GONE, facts=facts)
    assert collect_all(tmp_path) == [folder]
    record = read_record(folder)
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("failed", "lost")
    assert record["facts"]["host"] == {"name": "a"}
    assert record["fingerprint"]["machine"] == "m"
    before = (folder / files.RECORD).read_bytes()
    assert collect_all(tmp_path) == []
    assert collect(folder) == parse_record(record)
    assert (folder / files.RECORD).read_bytes() == before


def test_a_disk_that_is_full_at_collection_is_a_sentence_and_the_record_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left_folder(tmp_path, GONE)

    def full(path: Path, document: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_once", full)
        with pytest.raises(RequestError, match=r"record\.json could not be written: No space left on device"):
            collect(folder, gone=True)
        assert collect_all(tmp_path) == []
    assert collect_all(tmp_path) == [folder]


def test_a_whole_result_is_not_lost_with_its_supervisor(tmp_path: Path) -> None:
    metric = {"value": 1.0, "unit": "images/s", "scope": "all devices", "source": "counted"}
    folder = left_folder(tmp_path, GONE, result={"status": "ok", "metrics": {"throughput": metric}})
    record = collect(folder)
    assert record is not None
    assert record.status == "ok"
    assert [(check.name, check.level) for check in record.checks] == [("supervisor", "warn")]
    assert "completed at collection" in record.checks[0].message


def test_a_ranks_own_failure_outlives_its_supervisor(tmp_path: Path) -> None:
    failure = {"kind": "out-of-memory", "message": "2 GiB were free"}
    folder = left_folder(tmp_path, GONE, result={"status": "failed", "failure": failure})
    record = collect(folder)
    assert record is not None
    assert encode(record.failure) == failure


def test_a_living_or_distant_supervisor_is_left_alone(tmp_path: Path) -> None:
    folder = left_folder(tmp_path, identify())
    assert collect_all(tmp_path) == []
    files.write_whole(folder / files.SUPERVISOR, {**identify(), "host": "another-node", "boot_id": "b"})
    assert collect_all(tmp_path) == []
    assert not (folder / files.RECORD).exists()


def test_a_controller_that_died_before_the_supervisor_took_over_is_collected(tmp_path: Path) -> None:
    folder = left_folder(tmp_path, GONE | {"role": "controller"})
    record = collect(folder)
    assert record is not None
    assert record.failure is not None
    assert "no supervisor took over" in record.failure.message


def test_a_holder_with_a_number_that_no_process_has_is_gone(tmp_path: Path) -> None:
    """One such folder would end every verb that looks at runs."""
    folder = left_folder(tmp_path, {**identify(), "pid": 10**30})
    assert collect_all(tmp_path) == [folder]


@pytest.mark.parametrize("name", [files.SUPERVISOR, files.PLAN])
def test_a_folder_that_cannot_be_read_keeps_no_study_from_starting(tmp_path: Path, name: str) -> None:
    folder = left_folder(tmp_path, identify())
    (folder / name).unlink()
    (folder / name).symlink_to(name)  # a link to itself
    collect_all(tmp_path)
    wait_for_left(tmp_path, {(PLAN.trial.hash, PLAN.repeat)}, print)


def test_a_run_is_being_made_until_its_manifest_is_written(tmp_path: Path) -> None:
    """Its controller was killed, and its supervisor has written the record: the run must not be made again."""
    folder = left_folder(tmp_path, identify())
    files.write_once(folder / files.RECORD, {})
    assert is_being_made(tmp_path, PLAN.trial.hash, PLAN.repeat)
    write_manifest(folder, SUPERVISOR)
    assert not is_being_made(tmp_path, PLAN.trial.hash, PLAN.repeat)


@pytest.mark.parametrize("change", ["none", "edited", "removed"])
def test_a_supervisor_that_was_killed_after_the_record_gets_its_manifest_unless_something_changed(
    tmp_path: Path, change: str
) -> None:
    folder = left_folder(tmp_path, {**identify(), "start_ticks": 1})
    files.write_whole(folder / files.RESULT, {})
    files.write_once(folder / files.RECORD, {"schema": RECORD_SCHEMA, "status": "ok"})
    if change == "edited":
        time.sleep(2.1)  # longer than a supervisor takes between its last files
        (folder / files.RESULT).write_text("{}")
        os.utime(folder / files.RESULT, (0, 0))
    if change == "removed":
        (folder / files.STEPS).write_text("")
        time.sleep(2.1)
        (folder / files.STEPS).unlink()
    collect_all(tmp_path)
    assert has_manifest(folder) == (change == "none")


def test_two_containers_write_the_node_program_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shared home; the controller of each is process 1 there."""
    write, others = os.fdopen, iter([True])

    def beside(*given: Any, **more: Any) -> Any:
        if next(others, False):
            write_node(tmp_path / "node.zip")
        return write(*given, **more)

    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("os.fdopen", beside)
    path = write_node(tmp_path / "node.zip")
    assert zipfile.ZipFile(path).testzip() is None
    assert list(tmp_path.iterdir()) == [path]


def test_half_a_node_program_does_not_stay_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_node(tmp_path / "node.zip")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RequestError, match="No space left"):
        write_node_zip()


def test_another_python_is_asked_also_where_nothing_can_be_put_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prony study status` of runs that may only be read."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ntest -f "${PYTHONPATH%%:*}" && echo "{\\"zip\\": \\"$PYTHONPATH\\"}"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    zipped = Path(ask_node("devices")["zip"].split(os.pathsep)[0])
    assert zipped.parent == tmp_path / "cache" / "prony" / "node"


def test_folders_that_are_not_ours_to_settle_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / ".gpt-tiny.x1").mkdir()
    newer = tmp_path / "newer"
    files.create_folder(newer, {files.PLAN: {**PLAN.to_json(), "schema": "prony.plan/99"}})
    assert collect_all(tmp_path) == []
    assert collect_all(tmp_path / "absent") == []
