"""If these fail, an edited record passes for a measured one, or a measured one for an edited one."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.store import Store
from prony.store.archive import pack
from prony_node.contract import Peak, Plan, Trial, files
from prony_node.contract.record import Failure, measured
from prony_node.contract.run_folder import (
    COLLECTION,
    SUPERVISOR,
    assemble,
    make_failure,
    manifest_problems,
    node_source_hash,
    read_parts,
    write_manifest,
)
from prony_node.contract.trial import settings_hash
from prony_node.contract.typed import encode
from prony_node.measure.clock import Block
from prony_node.measure.loop import Window
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor
from prony_node.run.energy import energy_of_run
from prony_node.run.judge import rate_metrics
from prony_node.run.step_series import write_blocks
from prony_node.run.verify import verify_folder
from prony_node.stats import StopRule, Tracker

GPU = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
BATCH, FLOPS, PEAK = 8, 3.0e9, 989.5e12
BEGIN_S = 103.0
RUN = "resnet50-20270101T000000-abcdef"
Edit = Callable[[dict[str, Any]], None]


def blocks() -> list[Block]:
    """600 blocks of ten steps of about 2 ms, the first ones slow."""
    numbers = random.Random(1)
    return [Block(10, (0.02 + 0.03 * (at < 12)) * (1 + 0.01 * numbers.gauss(0, 1)), 0.0) for at in range(600)]


def record_power(folder: Path) -> None:
    counter = Sensor(f"made.energy {GPU}", "made", "counter", "gpu", GPU, "Made GPU", period_s=0.1)
    power = Sensor(f"made.power {GPU}", "made", "instantaneous", "gpu", GPU, "Made GPU", period_s=0.05)
    writer = Writer(folder, [counter, power], {"started_monotonic_s": 100.0, "busy_at_start": {GPU: ""}, "reasons": {}})
    numbers, joules = random.Random(2), 0.0
    for number in range(340):
        at_s, watts = 100.0 + 0.05 * number, 300.0 + numbers.gauss(0, 3)
        joules += 0.05 * watts
        writer.add(power, [Reading(at_s, at_s + 1e-4, watts)])
        if number % 2 == 0:
            writer.add(counter, [Reading(at_s, at_s + 1e-4, joules)])
    writer.close()


def make_run(root: Path, name: str = RUN) -> Path:
    """A run folder as rank and supervisor leave it, made by their own code."""
    folder = root / name
    folder.mkdir(parents=True)
    trial = Trial("resnet50", {"batch_size": BATCH})
    plan = Plan(name, trial, peaks=(Peak("H200", "bf16", PEAK, "a datasheet"),))
    files.write_whole(folder / files.PLAN, plan.to_json())
    files.write_whole(folder / files.DEVICE, {"name": "NVIDIA H200", "kind": "cuda", "uuid": GPU})
    files.write_whole(folder / files.FACTS, {"software": {"prony_node_source": node_source_hash()}})
    record_power(folder)
    window = Window("device events", "fixed", tuple(blocks()))
    tracker = Tracker(StopRule())
    for block in window.blocks:
        tracker.add(block.duration_s, block.steps)
    estimate = tracker.estimate()
    assert estimate is not None
    write_blocks(folder / files.STEPS, window.blocks)
    steps = window.steps - estimate.cut_steps
    metrics = rate_metrics(window, estimate, BATCH, "images", from_host=False)
    rate = metrics["throughput_per_device"].value or 0.0
    metrics["flops_per_sample"] = measured(FLOPS, "FLOP", scope="one sample", source="counted")
    metrics["mfu"] = measured(rate * FLOPS / PEAK, "1", scope="one device", source="peak")
    metrics["peak_memory"] = measured(5e9, "B", scope="one device", source="torch")
    result = {
        "status": "ok", "unit": "images", "metrics": encode(metrics), "steady": dataclasses.asdict(estimate),
        "effective": {"batch_size": BATCH, "precision": "bf16", "devices": 1, "nodes": 1},
        "phases": {"steady": {"seconds": window.duration_s - estimate.cut_s, "steps": steps}},
        "checks": [{"name": "steady", "level": "pass", "message": "no drift shown"}],
        "work": {"samples": steps * BATCH, "units": steps * BATCH, "steps": steps, "devices": 1, "window": "steady"},
        "loop_monotonic": [BEGIN_S, BEGIN_S + window.duration_s], "device_from_monotonic": BEGIN_S - 1.0,
        "window_monotonic": [BEGIN_S + estimate.cut_s, BEGIN_S + window.duration_s], "series_period": 0,
    }  # fmt: skip
    files.write_whole(folder / files.RESULT, result)
    parts = read_parts(folder)
    at = "2027-01-01T00:00:00+00:00"
    record = assemble(plan, parts, started=at, ended=at, energy=energy_of_run(plan, folder, parts))
    assert record["status"] == "ok", record["failure"]
    files.write_once(folder / files.RECORD, record)
    write_manifest(folder, SUPERVISOR)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "runs" / made.name)


def edit(folder: Path, change: Edit, name: str = files.RECORD, manifest: bool = True) -> None:
    """Change a document as a forger does, who writes the manifest anew."""
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    change(document)
    (folder / name).write_text(json.dumps(document), encoding="utf-8")
    if manifest:
        (folder / files.MANIFEST).unlink()
        write_manifest(folder, SUPERVISOR)


def prony(*words: str) -> Any:
    return CliRunner().invoke(make_app(words[0]), list(words), env={"COLUMNS": "140"})


def test_what_was_measured_verifies(folder: Path) -> None:
    found = verify_folder(folder)
    assert (found.outcome, found.problems) == ("verified", ())
    expected = {"throughput", "throughput_per_device", "step_time", "mfu", "energy", "energy_per_sample", "power"}
    assert expected <= set(found.recomputed)
    assert found.not_recomputed == ("flops_per_sample", "peak_memory")


def test_a_record_edited_alone_differs_from_the_manifest(folder: Path) -> None:
    edit(folder, lambda record: record["metrics"]["throughput"].update(value=1e6), manifest=False)
    found = verify_folder(folder)
    assert (found.outcome, found.problems[0]) == ("not verified", "record.json was changed after the run")
    assert "metrics.throughput.value is 1000000, recomputed it is" in found.problems[1], "the files say what is true"


def tenfold(name: str) -> Edit:
    def change(document: dict[str, Any]) -> None:
        for part in ("value", "low", "high"):
            if document["metrics"][name][part] is not None:
                document["metrics"][name][part] *= 10

    return change


@pytest.mark.parametrize(
    "name", ["throughput", "throughput_per_device", "step_time", "mfu", "energy", "energy_per_sample", "power"]
)
def test_a_figure_ten_times_as_large_is_found_though_manifest_and_result_were_forged_too(
    folder: Path, name: str
) -> None:
    edit(folder, tenfold(name))
    if name in json.loads((folder / files.RESULT).read_text())["metrics"]:
        edit(folder, tenfold(name), files.RESULT)
    found = verify_folder(folder)
    assert found.outcome == "not verified"
    assert any(f"metrics.{name}.value" in problem for problem in found.problems), found.problems
    assert manifest_problems(folder) == []


FORGED: dict[str, Edit] = {
    "metrics.throughput.low": lambda record: record["metrics"]["throughput"].update(low=1.0),
    "steady.relative_half_width": lambda record: record["steady"].update(relative_half_width=1e-6),
    "work.steps": lambda record: record["work"].update(steps=60_000, samples=480_000, units=480_000),
    "work.samples": lambda record: record["work"].update(samples=480_000, units=480_000),
    "checks of record.json": lambda record: record["checks"][0].update(message="all is well"),
    "metrics of record.json": lambda record: record["metrics"]["peak_memory"].update(value=1.0),
    "energy of record.json": lambda record: record["energy"]["parts"][0].update(energy_j=1.0),
    "not of the run": lambda record: record["trial"]["settings"].update(batch_size=64),
    "trial.effective_hash": lambda record: record["trial"]["effective"].update(precision="fp8"),
    "facts of record.json": lambda record: record["facts"]["devices"][0].update(name="NVIDIA B200"),
    "fingerprint of record.json": lambda record: record["fingerprint"].update(machine="0123456789abcdef"),
    "status of record.json": lambda record: record.update(status="failed", failure=make_failure("lost", "gone")),
    "stop of record.json": lambda record: record["stop"].update(reason="tolerance"),
    "repeat of record.json": lambda record: record.update(repeat=3),
    "learning of record.json": lambda record: record.update(learning={"reached": {"epoch": 3}}),
    "metrics.throughput.low is no number": lambda record: record["metrics"]["throughput"].update(low="much"),
}


@pytest.mark.parametrize("change", [{"precision": "fp8"}, {"workload": "vit-l"}], ids=["precision", "workload"])
def test_effective_settings_are_those_that_the_rank_ran_though_their_hash_was_made_anew(
    folder: Path, change: dict[str, str]
) -> None:
    def forge(record: dict[str, Any]) -> None:
        trial = record["trial"]
        (trial if "workload" in change else trial["effective"]).update(change)
        trial["effective_hash"] = settings_hash(trial["workload"], trial["effective"])

    edit(folder, forge)
    assert any("trial of record.json" in problem for problem in verify_folder(folder).problems)


@pytest.mark.parametrize("said", FORGED)
def test_other_edits_are_found_with_a_new_manifest(folder: Path, said: str) -> None:
    edit(folder, FORGED[said])
    found = verify_folder(folder)
    assert found.outcome == "not verified"
    assert any(said in problem for problem in found.problems), found.problems


def test_a_step_series_that_was_edited_no_longer_gives_the_rate(folder: Path) -> None:
    lines = (folder / files.STEPS).read_text().splitlines()
    (folder / files.STEPS).write_text("\n".join([*lines[:300], *lines[301:]]) + "\n")
    edit(folder, lambda record: None)
    assert "metrics.throughput.value" in " ".join(verify_folder(folder).problems)


@pytest.mark.parametrize("what", ["gone", "more"])
def test_a_file_that_is_gone_or_new_is_named(folder: Path, what: str) -> None:
    if what == "gone":
        (folder / files.STEPS).unlink()
    else:
        (folder / "power.csv.gz").write_bytes(b"")
    said = "steps.csv is missing" if what == "gone" else "power.csv.gz is not in the manifest"
    assert verify_folder(folder).problems == (said,)


def test_a_link_is_no_file_of_a_run_and_a_manifest_that_is_a_folder_is_no_traceback(folder: Path) -> None:
    outside = folder.parent / "elsewhere.csv"
    (folder / files.STEPS).rename(outside)
    (folder / files.STEPS).symlink_to(outside)
    edit(folder, lambda record: None)
    assert verify_folder(folder).problems == ("steps.csv is a link: it is in no manifest",)
    (folder / files.MANIFEST).unlink()
    (folder / files.MANIFEST).mkdir()
    assert verify_folder(folder).outcome == "not verified"


def test_a_run_cannot_write_its_own_verdict(folder: Path) -> None:
    edit(folder, lambda record: record.update(id="x\nverified      y: 9 figures recomputed\x1b[2K"))
    said = prony("verify", str(folder)).stdout
    assert not any(line.startswith("verified") for line in said.splitlines())
    assert "\x1b" not in said


def test_the_supervisors_own_log_may_grow(folder: Path) -> None:
    (folder / files.SUPERVISOR_LOG).write_text("prony_node: it said something at its end\n")
    assert verify_folder(folder).outcome == "verified"


def older(record: dict[str, Any]) -> None:
    """As it was before there were manifests."""
    record["schema"] = "prony.record/1"


def test_a_record_of_before_manifests_is_unverified_whatever_it_says(folder: Path) -> None:
    edit(folder, tenfold("throughput"))
    edit(folder, older)
    (folder / files.MANIFEST).unlink()
    found = verify_folder(folder)
    assert found.outcome == "unverified"
    assert found.recomputed == ()


@pytest.mark.parametrize("series", [True, False])
def test_a_manifest_that_was_removed_is_missed(folder: Path, series: bool) -> None:
    (folder / files.MANIFEST).unlink()
    if not series:
        (folder / files.STEPS).unlink()
    found = verify_folder(folder)
    assert (found.outcome, "manifest.json is missing" in found.problems[0]) == ("not verified", True)


def test_a_failed_run_that_was_collected_claims_no_figure(tmp_path: Path) -> None:
    folder = tmp_path / RUN
    plan = Plan(RUN, Trial("resnet50", {}))
    files.create_folder(folder, {files.PLAN: plan.to_json()})
    at = "2027-01-01T00:00:00+00:00"
    failure = Failure("lost", "the supervisor ended without writing a record")
    files.write_once(folder / files.RECORD, assemble(plan, read_parts(folder), started=at, ended=at, failure=failure))
    write_manifest(folder, COLLECTION)
    found = verify_folder(folder)
    assert (found.outcome, found.recomputed) == ("verified", ())
    assert "it has no figures to recompute" in found.notes[0]


def test_a_record_of_other_code_keeps_its_figures_and_todays_statistics_are_a_note(folder: Path) -> None:
    def by_other_code(record: dict[str, Any]) -> None:
        record["facts"]["software"]["prony_node_source"] = "0123456789abcdef"

    def wider(document: dict[str, Any]) -> None:
        document["metrics"]["throughput"]["high"] *= 1.01
        document["steady"]["half_width_floor"] = 0.5

    def facts_by_other_code(facts: dict[str, Any]) -> None:
        facts["software"]["prony_node_source"] = "0123456789abcdef"

    edit(folder, by_other_code)
    assert "facts of record.json" in verify_folder(folder).problems[0]  # made so by whoever edited the record
    edit(folder, facts_by_other_code, files.FACTS)
    edit(folder, lambda record: record["stop"].pop("warm_time_s"))  # of a version that did not have it
    assert verify_folder(folder).outcome == "verified"
    edit(folder, wider, files.RESULT)
    edit(folder, wider)
    found = verify_folder(folder)
    assert (found.outcome, found.problems) == ("verified", ())
    assert any("metrics.throughput.high" in note and "0123456789abcdef" in note for note in found.notes)
    edit(folder, tenfold("throughput"))
    assert verify_folder(folder).outcome == "not verified"


def test_an_older_record_with_an_interval_below_the_floor_stays_unverified_and_unchanged(folder: Path) -> None:
    """Widening is for whoever reads it: the file stays, and nothing is there to check it against."""

    def without_floor(record: dict[str, Any]) -> None:
        del record["steady"]["half_width_floor"]
        rate = record["metrics"]["throughput"]
        rate |= {"low": rate["value"], "high": rate["value"]}
        record["schema"] = "prony.record/1"

    edit(folder, without_floor, manifest=False)
    (folder / files.MANIFEST).unlink()
    before = (folder / files.RECORD).read_bytes()
    found = verify_folder(folder)
    assert (found.outcome, (folder / files.RECORD).read_bytes()) == ("unverified", before)


def test_of_the_same_code_an_interval_that_differs_is_a_problem(folder: Path) -> None:
    def wider(document: dict[str, Any]) -> None:
        document["metrics"]["throughput"]["high"] *= 1.01

    edit(folder, wider, files.RESULT)
    edit(folder, wider)
    assert "metrics.throughput.high" in verify_folder(folder).problems[0]


def test_exit_codes_and_lines(folder: Path, tmp_path: Path) -> None:
    good = prony("verify", str(folder))
    assert (good.exit_code, good.stdout.startswith(f"verified      {RUN}: ")) == (0, True), good.output
    old = shutil.copytree(folder, folder.parent / "old")
    edit(old, older)
    (old / files.MANIFEST).unlink()
    unverified = prony("verify", str(old))
    assert unverified.exit_code == 3
    assert "unverified" in unverified.stdout
    whole = prony("verify", str(folder.parent), "--json")
    assert whole.exit_code == 3
    assert [one["outcome"] for one in json.loads(whole.stdout)] == ["unverified", "verified"]
    edit(folder, tenfold("throughput"))
    forged = prony("verify", str(folder.parent))
    assert forged.exit_code == 1
    assert "NOT VERIFIED" in forged.stdout
    assert forged.stdout.endswith("0 verified, 1 not verified, 1 unverified\n")
    assert prony("verify", str(tmp_path / "nothing"), "--runs", str(folder.parent)).exit_code not in (0, 1, 3)


def test_an_archive_is_verified_where_it_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for archive, code in ((tmp_path / "good.tar.gz", 0), (tmp_path / "forged.tar.gz", 1)):
        if code:
            edit(folder, tenfold("throughput"))
        with archive.open("wb") as out:
            pack([folder], out)
        done = prony("verify", str(archive))
        assert done.exit_code == code, done.output
    assert list(temporary.iterdir()) == []


def test_imports_and_rebuilds_mark_what_does_not_verify(folder: Path, tmp_path: Path) -> None:
    forged = make_run(folder.parent, "resnet50-20270101T000001-abcde0")
    edit(forged, tenfold("throughput"))
    archive = tmp_path / "x.tar.gz"
    with archive.open("wb") as out:
        pack([folder, forged], out)
    root = tmp_path / "here"
    done = prony("store", "import", str(archive), "--runs", str(root))
    assert done.exit_code == 0, done.output
    assert "resnet50-20270101T000001-abcde0 does not verify: metrics.throughput.value" in done.stderr
    marks = {run.id: run.verified for run in Store(root).runs()}
    assert marks == {RUN: "yes", forged.name: "no"}
    assert "does not verify" in prony("runs", "--runs", str(root)).stdout
    assert prony("query", "verified=no", "--columns", "id", "--runs", str(root)).stdout.count(forged.name) == 1
    assert "NOT VERIFIED" in prony("show", forged.name, "--runs", str(root)).stdout
    assert "verified: the record agrees" in prony("show", RUN, "--runs", str(root)).stdout
    prony("store", "rebuild", "--quick", "--runs", str(root))
    assert {run.id: run.verified for run in Store(root).runs()} == {RUN: "manifest", forged.name: "no"}
    prony("store", "rebuild", "--runs", str(root))
    assert {run.id: run.verified for run in Store(root).runs()} == marks


def test_the_rate_comes_back_with_every_digit(folder: Path) -> None:
    record = json.loads((folder / files.RECORD).read_text())
    rows = (folder / files.STEPS).read_text().splitlines()[1:]
    written = [(int(row.split(",")[1]), float(row.split(",")[3])) for row in rows]
    assert written == [(block.steps, block.duration_s) for block in blocks()]
    assert record["metrics"]["throughput"]["value"] == BATCH / record["steady"]["step_time_s"]
