"""`prony scale`: a series in one command, resumed without doing anything twice; the runs are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scaling_records
from typer.testing import CliRunner

import prony.api
import prony.engine.history
import prony.engine.local
import prony.engine.possible
from prony.cli.main import make_app
from prony.engine.runs import RunOutcome, TrialRun
from prony.sites.locks import hold_devices
from prony_node.contract import files
from prony_node.contract.record import parse_record
from prony_node.contract.run_folder import SUPERVISOR, write_manifest
from prony_node.parallel import place


class Machine:
    """Runs that take no time: the rate is what the law gives, and each run folder holds its record."""

    def __init__(self) -> None:
        self.made: list[TrialRun] = []
        self.fails: int | None = None  # the count of devices whose runs fail

    def run(self, job: TrialRun, root: Path, *_: Any) -> RunOutcome:
        self.made.append(job)
        settings = job.trial.settings
        nodes, sync = int(settings.get("nodes", 1)), settings.get("sync", True) is True
        devices = int(settings["devices"])
        rate = 1000.0 * devices * (0.9 if devices > 1 and sync else 1.0) * (1.0 + 0.001 * job.repeat)
        record = scaling_records.scaled_record(
            devices, rate, kind="strong" if "global_batch" in settings else "weak", sync=sync, repeat=job.repeat,
            failed="rank 1 ran out of memory" if devices == self.fails else None, settings={"nodes": nodes},
        )  # fmt: skip
        record["trial"] = {**job.trial.to_json(), "effective": record["trial"]["effective"]}
        folder = root / record["id"]
        folder.mkdir(parents=True)
        (folder / files.RECORD).write_text(json.dumps(record))
        write_manifest(folder, SUPERVISOR)
        return RunOutcome(folder, parse_record(record))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(prony.engine.local, "run_one", found.run)
    answers = {
        "devices": {"kind": "cuda", "devices": ["an H200"] * 8},
        "fingerprint": {"machine": "m", "software": "s"},
    }
    for module in (prony.engine.history, prony.engine.possible):
        monkeypatch.setattr(module, "ask_node", lambda question, *_, **__: answers[question])
    return found


def scale(root: Path, words: str, code: int = 0) -> str:
    argv = ["scale", "resnet50", *words.split(), "--out", str(root)]
    done = CliRunner().invoke(make_app("scale"), argv, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def test_the_answer_holds_gain_loss_and_prediction(machine: Machine, tmp_path: Path) -> None:
    said = scale(tmp_path, "devices=1,2,4 batch_size=64")
    assert "weak scaling: 64 samples per step and device" in said
    for words in ("90.0 %", "communication", "Nothing else changed", "Held out: from 1 and 2 alone", "between 3 runs"):
        assert words in " ".join(said.split())
    assert f"prony report --runs {tmp_path}" in said.replace("\n", " ")


def test_energy_can_be_left_out(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2 batch_size=64 --repeats 1 --no-energy")
    assert [job.energy for job in machine.made] == [False] * 3


def test_what_does_not_exchange_gradients_is_never_the_best(machine: Machine, tmp_path: Path) -> None:
    words = "scale resnet50 devices=1,2 batch_size=64 --repeats 1 --out"
    said = CliRunner().invoke(make_app("scale"), [*words.split(), str(tmp_path)]).stderr
    assert "best so far: 1,800 images/s" in said
    assert "best so far: 2,000 images/s" not in said
    assert {job.trial.settings.get("sync") for job in machine.made} == {None, False}, "it was run all the same"


def test_a_batch_that_nobody_gave_is_said_before_the_runs(machine: Machine, tmp_path: Path) -> None:
    words = "scale gpt-tiny devices=1,2 device=cpu --strong --repeats 1 --out"
    done = CliRunner().invoke(make_app("scale"), [*words.split(), str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "no batch was given: strong scaling keeps 8 on all devices together" in done.stderr
    assert machine.made[1].trial.settings["global_batch"] == 8


def test_a_collective_that_was_run_here_stands_beside(machine: Machine, tmp_path: Path) -> None:
    """What the machine can do, from the same folder of runs."""
    made = scaling_records.scaled_record(2, 45e9, metrics={"bus_bandwidth": scaling_records.metric(45e9, "B/s")})
    made = {**made, "id": "allreduce-run", "trial": {**made["trial"], "workload": "allreduce"}}
    (tmp_path / "allreduce-run").mkdir()
    (tmp_path / "allreduce-run" / files.RECORD).write_text(json.dumps(made))
    document = json.loads(scale(tmp_path, "devices=1,2 batch_size=64 parallel=ddp --json"))
    assert document["series"][0]["points"][1]["link"]["run"] == "allreduce-run"


def test_repeats_go_there_and_back_with_the_diagnostic_beside(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2 batch_size=64 --repeats 2")
    there = [(1, True), (2, True), (2, False)]
    made = [(job.trial.settings["devices"], job.trial.settings.get("sync", True)) for job in machine.made]
    assert made == [*there, *reversed(there)]


def test_what_is_finished_is_not_run_again(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2 batch_size=64 --no-diagnose --repeats 1")
    before = len(machine.made)
    said = scale(tmp_path, "devices=1,2,4 batch_size=64 --no-diagnose --repeats 1")
    assert [job.trial.settings["devices"] for job in machine.made[before:]] == [4]
    assert "3.600" in said
    assert "the runs with sync=off were switched off" in " ".join(said.split())


def test_a_device_in_use_is_refused_unless_shared(machine: Machine, tmp_path: Path) -> None:
    with hold_devices({"cpu"}, "a sweep of theirs"):
        scale(tmp_path, "devices=1,2 batch_size=64 --no-diagnose", code=2)
        assert machine.made == []
        scale(tmp_path, "devices=1,2 batch_size=64 --no-diagnose --share --repeats 1")
    assert len(machine.made) == 2


def test_json_is_a_document_with_a_series_of_each_kind(machine: Machine, tmp_path: Path) -> None:
    document = json.loads(scale(tmp_path, "devices=1,2,4 batch_size=64 --both --predict 16 --json"))
    assert document["schema"] == "prony.scaling/1"
    assert [series["kind"] for series in document["series"]] == ["weak", "strong"]
    assert len(document["runs"]) == len(machine.made) == 3 * 9
    for series in document["series"]:
        assert [point["devices"] for point in series["points"]] == [1, 2, 4]
        assert series["points"][2]["efficiency"]["value"] == pytest.approx(0.9)
        assert series["points"][2]["losses"]["parts"][0]["share"]["value"] == pytest.approx(0.1)
        assert [one["devices"] for one in series["fit"]["predictions"]] == [16]
        assert series["changes"] == []


def test_a_count_that_fails_leaves_the_others_and_the_exit_code(machine: Machine, tmp_path: Path) -> None:
    machine.fails = 4
    said = scale(tmp_path, "devices=1,2,4 batch_size=64 --repeats 1", code=1)
    assert "rank 1 ran out of memory" in said
    assert "1.800" in said


def test_nodes_need_a_place_to_meet(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (prony.api.NODE_RANK, prony.api.RENDEZVOUS) == (place.NODE_RANK, place.RENDEZVOUS)
    monkeypatch.delenv(place.RENDEZVOUS, raising=False)
    scale(tmp_path, "devices=1,2 batch_size=64 --nodes 2", code=2)
    assert machine.made == []
    monkeypatch.setenv(place.RENDEZVOUS, "node017:29500")
    monkeypatch.setenv(place.NODE_RANK, "0")
    document = json.loads(scale(tmp_path, "devices=1,2 batch_size=64 --nodes 2 --repeats 1 --json"))
    assert [(one["devices"], one["nodes"]) for one in document["series"][0]["points"]] == [(1, 1), (2, 1), (4, 2)]


def test_more_devices_than_there_are_start_nothing(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2,16 batch_size=64", code=2)
    assert machine.made == []


def test_kinds_exclude_each_other(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2 --weak --strong", code=2)
    assert machine.made == []


def test_a_run_that_was_changed_is_made_again_and_said(machine: Machine, tmp_path: Path) -> None:
    scale(tmp_path, "devices=1,2 batch_size=64 --no-diagnose --repeats 1")
    path = tmp_path / "resnet50-weak-2-on-0" / files.RECORD
    path.write_text(path.read_text().replace("1800.0", "2000.0"))
    (path.parent / files.MANIFEST).unlink()
    moved = path.parent.rename(tmp_path / "elsewhere")  # made again, the stand-in takes the same name
    before = len(machine.made)
    words = "scale resnet50 devices=1,2 batch_size=64 --no-diagnose --repeats 1 --out"
    done = CliRunner().invoke(make_app("scale"), [*words.split(), str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert len(machine.made) == before + 1
    assert "1 finished run not taken: the record does not verify" in done.stderr
    assert "best so far: 2,000" not in done.stderr
    assert moved.exists()
