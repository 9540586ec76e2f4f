"""The index is a convenience: whatever happens to it, the folders must answer."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from prony.store import Store
from prony.store.rows import folders_of, read_row
from prony_node.contract.errors import RequestError


def write_record(folder: Path, record: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")


def test_refresh_indexes_every_folder_once(root: Path) -> None:
    store = Store(root)
    assert len(store.refresh().ingested) == 13
    assert store.refresh().ingested == []
    assert len(store.runs()) == 13


def test_runs_are_newest_first_and_filtered(root: Path) -> None:
    store = Store(root)
    started = [run.started for run in store.runs()]
    assert started == sorted(started, reverse=True)
    assert [run.id for run in store.runs(limit=1)] == ["gpt-tiny-20260303T081000-e00002"]
    assert {run.status for run in store.runs(status="failed")} == {"failed"}
    assert len(store.runs(workload="resnet50")) == 4


def test_row_holds_what_lists_show(root: Path) -> None:
    run = Store(root).find("d00001")
    assert (run.workload, run.unit, run.rate, run.worst) == ("resnet50", "images", 22730.0, "pass")
    assert run.settings == {"mode": "infer"}
    assert run.effective["graphs"] is True
    assert run.folder == root / "resnet50-20260302T100000-d00001"
    assert json.loads(json.dumps(run.to_json()))["rate"] == 22730.0


def test_row_holds_the_quality_where_there_is_one(root: Path, learning_root: Path) -> None:
    reached, missed = (Store(learning_root).find(end) for end in ("f00000", "f00003"))
    assert (reached.score, reached.quality, reached.time_to_quality_s) == ("accuracy", 0.9382, 32.7645)
    assert (missed.score, missed.time_to_quality_s) == ("accuracy", None)
    other = Store(root).find("d00001")
    assert (other.score, other.quality, other.time_to_quality_s) == (None, None, None)


def test_ingest_twice_leaves_one_row(root: Path) -> None:
    store = Store(root)
    folder = next(root.glob("resnet50*"))
    store.ingest(folder)
    store.ingest(folder)
    assert len([run for run in store.runs() if run.folder == folder]) == 1


def test_ingest_refuses_a_folder_elsewhere(root: Path, replay: Path) -> None:
    with pytest.raises(RequestError, match="copy it there"):
        Store(root).ingest(next(replay.glob("resnet50*")))


def test_ingest_of_an_unfinished_run_says_so(root: Path) -> None:
    (root / "running").mkdir()
    with pytest.raises(RequestError, match=r"no readable record\.json"):
        Store(root).ingest(root / "running")


def test_folder_that_is_gone_is_dropped(root: Path) -> None:
    store = Store(root)
    store.refresh()
    shutil.rmtree(root / "resnet50-20260302T100000-d00001")
    assert store.refresh().dropped == ["resnet50-20260302T100000-d00001"]
    assert len(store.runs()) == 12


def test_a_run_that_another_process_has_just_indexed_is_not_dropped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the folders were listed, and before the rows were."""
    store = Store(root)
    store.refresh()
    listed = folders_of(root)[1:]
    monkeypatch.setattr("prony.store.index.folders_of", lambda _: listed)
    assert store.refresh().dropped == []
    assert len(store.runs()) == 13


def test_broken_and_newer_records_are_skipped_and_reported(root: Path) -> None:
    write_record(root / "newer", {"schema": "prony.record/99"})
    write_record(root / "incomplete", {"schema": "prony.record/1", "id": "x"})
    (root / "torn").mkdir()
    (root / "torn" / "record.json").write_text('{"schema": "prony.rec', encoding="utf-8")
    (root / "running").mkdir()
    (root / "running" / "plan.json").write_text("{}", encoding="utf-8")
    refreshed = Store(root).rebuild()
    reasons = {skipped.folder.name: skipped.reason for skipped in refreshed.skipped}
    assert set(reasons) == {"newer", "incomplete", "torn"}
    assert "newer Prony" in reasons["newer"]
    assert [folder.name for folder in refreshed.unfinished] == ["running"]
    assert len(refreshed.ingested) == 13


def test_record_with_odd_types_is_skipped_not_fatal(root: Path, get_record: object) -> None:
    record = get_record("d00001")  # type: ignore[operator]
    record["trial"] = "not an object"
    write_record(root / "odd", record)
    assert [skipped.folder.name for skipped in Store(root).refresh().skipped] == ["odd"]


def test_a_record_nested_without_end_is_skipped_not_fatal(root: Path, get_record: object) -> None:
    """json gives up on it with an error that is not one of a value."""
    text = json.dumps(get_record("d00001"))  # type: ignore[operator]
    (root / "deep").mkdir()
    (root / "deep" / "record.json").write_text(f'{{"x": {"[" * 100_000}, {text[1:]}', encoding="utf-8")
    refreshed = Store(root).refresh()
    assert [skipped.folder.name for skipped in refreshed.skipped] == ["deep"]
    assert len(refreshed.ingested) == 13


def test_rows_are_the_same_whichever_library_reads_the_json(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = sorted(root.glob("*-*"))
    rows = [read_row(folder) for folder in folders]
    monkeypatch.setattr("prony.store.rows.loads", json.loads)
    assert [read_row(folder) for folder in folders] == rows


@pytest.mark.parametrize("damage", ["garbage", "empty", "foreign", "torn", "absent", "unknown"])
def test_index_in_any_state_is_rebuilt(root: Path, damage: str) -> None:
    store, index = Store(root), root / "index.sqlite"
    store.refresh()
    if damage == "garbage":
        index.write_bytes(index.read_bytes()[:100] + b"this is no database" * 500)
    elif damage == "empty":
        store.close()  # an index that is open cannot be emptied under its user's hands
        index.write_bytes(b"")
    elif damage == "torn":
        index.write_bytes(index.read_bytes()[:5000])
    elif damage == "absent":
        index.unlink()
    else:
        with sqlite3.connect(index) as connection:
            connection.execute(
                "UPDATE prony_version SET version_num = 'x'" if damage == "unknown" else "DROP TABLE prony_version"
            )
        connection.close()
    assert len(Store(root).runs()) == 13
    assert len(store.runs()) == 13


def test_finished_tells_trial_repeat_machine_and_software_apart(root: Path) -> None:
    store = Store(root)
    run = store.find("c00001")
    found = store.finished(run.trial_hash, 1, run.machine)
    assert [(other.id, other.status) for other in found] == [(run.id, "ok")]
    assert store.finished(run.trial_hash, 7, run.machine) == []
    assert store.finished(run.trial_hash, 1, "another") == []
    failed = store.find("b00f07")
    assert store.finished(failed.trial_hash, 0, failed.machine)[0].status == "failed"


def test_missing_fingerprint_is_found_as_missing(root: Path, get_record: object) -> None:
    record = get_record("d00001")  # type: ignore[operator]
    record["id"], record["fingerprint"] = "unknown-machine", {"machine": None, "software": None}
    write_record(root / "unknown-machine", record)
    store = Store(root)
    assert [run.id for run in store.finished(record["trial"]["hash"], 0, None)] == ["unknown-machine"]


def test_root_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    assert Store(tmp_path / "nothing").runs() == []
    assert not (tmp_path / "nothing").exists()


def test_root_that_cannot_be_written_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prony.store.index.os.access", lambda path, mode: False)
    assert len(Store(root).runs()) == 13
    assert not (root / "index.sqlite").exists()
