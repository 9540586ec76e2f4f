"""The energy of a run for real, from the sampler to the report; the machine's power is a synthesised recording."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import files
from prony_node.contract.run_folder import SUPERVISOR, write_manifest
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor
from prony_node.run.verify import verify_folder

ROOT = Path(__file__).parents[2]
POWER_W = 50.0
# Small steps, so that there are many of them in few seconds; the tolerance is wide, the window counts here.
RUN = ["run", "gpt-tiny", "device=cpu", "batch_size=1", "sequence=16", "--tolerance", "20%", "--json"]
FIGURES = ("energy", "energy_per_sample", "samples_per_wh", "power")

pytestmark = pytest.mark.slow


class Place:
    """A folder of runs on a machine whose CPU takes 50 W."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
        own = {"PRONY_RUNS": str(self.runs), "PRONY_POWER_REPLAY": str(make_recording(folder / "recording"))}
        self.environment = {**kept, **own, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}

    def prony(self, *words: str, ranks: dict[str, str] | None = None) -> str:
        argv = [sys.executable, "-m", "prony", *words]
        done = subprocess.run(argv, env=self.environment | (ranks or {}), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


def make_recording(folder: Path) -> Path:
    """A package at 50 W by a counter and by a power sensor, read every 50 ms for a minute."""
    folder.mkdir()
    counter = Sensor("made.energy package-0", "made", "counter", "package", "package-0", "Made CPU", period_s=0.1)
    power = Sensor("made.power package-0", "made", "instantaneous", "package", "package-0", "Made CPU", period_s=0.05)
    writer = Writer(folder, [counter, power], {"busy_at_start": {"package-0": ""}})
    for number in range(1200):
        at_s = 0.05 * number
        writer.add(counter, [Reading(at_s, at_s + 1e-4, 0.1 * POWER_W * (number // 2))])
        writer.add(power, [Reading(at_s, at_s + 1e-4, POWER_W)])
    writer.close()
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("energy"))


@pytest.fixture(scope="module")
def record(place: Place) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(place.prony(*RUN, "--max-time", "10s"))
    return document


def test_a_run_has_its_energy_with_what_it_rests_on(place: Place, record: dict[str, Any]) -> None:
    assert record["status"] == "ok"
    metrics = record["metrics"]
    for name in FIGURES:
        assert metrics[name]["low"] < metrics[name]["value"] < metrics[name]["high"], name
        assert metrics[name]["scope"] == "package"
    assert metrics["energy_per_sample"]["unit"] == "J/token"
    assert metrics["samples_per_wh"]["unit"] == "tokens/Wh"
    # The replay moves with the machine's clock, but a machine that is held up is read late: the interval says so.
    power = metrics["power"]
    slack_w = 0.02 * POWER_W
    assert power["low"] - slack_w <= POWER_W <= power["high"] + slack_w
    (part,) = record["energy"]["parts"]
    assert (part["part"], part["method"], part["evidence"]) == ("package-0", "counter", "recording")
    checks = {check["name"]: check["level"] for check in record["checks"]}
    assert {name for name in checks if name.startswith("energy-")} >= {
        "energy-window", "energy-agreement", "energy-gap", "energy-drift", "energy-devices",
    }  # fmt: skip
    assert checks["energy-devices"] == "pass"
    there = {path.name for path in (place.runs / record["id"]).iterdir()}
    assert there >= {files.POWER, files.POWER_SAMPLES}
    assert files.POWER_LOG not in there, "the sampler had something to say"


def test_it_verifies_and_its_archive_too_until_somebody_edits_it(
    place: Place, record: dict[str, Any], tmp_path: Path
) -> None:
    archive = tmp_path / "runs.tar.gz"
    place.prony("store", "export", str(archive), record["id"])
    for target in (record["id"], str(place.runs / record["id"]), str(archive)):
        (found,) = json.loads(place.prony("verify", target, "--json"))
        assert (found["outcome"], found["problems"]) == ("verified", [])
        assert {*FIGURES, "throughput", "step_time", "throughput_per_device"} <= set(found["recomputed"])
    forged = tmp_path / "forged" / record["id"]
    shutil.copytree(place.runs / record["id"], forged)
    samples = forged / files.POWER_SAMPLES
    lines = samples.read_text(encoding="utf-8").splitlines()
    kept = [line for number, line in enumerate(lines) if number % 7 or not number]
    samples.write_text("\n".join(kept) + "\n", encoding="utf-8")
    (forged / files.MANIFEST).unlink()
    write_manifest(forged, SUPERVISOR)
    found = verify_folder(forged)
    assert found.outcome == "not verified"
    assert any("power" in problem or "energy" in problem for problem in found.problems)


def test_its_arithmetic_holds(record: dict[str, Any]) -> None:
    value = {name: record["metrics"][name]["value"] for name in (*FIGURES, "throughput")}
    (part,) = record["energy"]["parts"]
    seconds = part["window_s"][1] - part["window_s"][0]
    assert value["energy"] / seconds == pytest.approx(value["power"], rel=1e-9)
    assert value["samples_per_wh"] * value["energy_per_sample"] == pytest.approx(3600.0, rel=1e-9)
    rate = value["power"] / value["energy_per_sample"]  # tokens a second, by the energy's own window
    assert rate == pytest.approx(value["throughput"], rel=0.25)


def test_the_energy_is_shown_and_reported(place: Place, record: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    place.prony("report", record["id"], "--out", str(page))
    shown, reported = place.prony("show", record["id"]), page.read_text(encoding="utf-8")
    for expected in ("J/token", "tokens/Wh", "Made CPU", "W mean", "made.energy", "energy-agreement"):
        assert expected in shown, expected
        assert expected in reported, expected
    for name in FIGURES:
        assert name in shown
        assert name in reported or name.replace("_", " ") in reported


def test_energy_that_is_not_wanted_is_not_sampled(place: Place, quick_ranks: dict[str, str]) -> None:
    record = json.loads(place.prony(*RUN, "steps=3", "--no-energy", ranks=quick_ranks))
    assert record["status"] == "ok"
    for name in (*FIGURES, "node_energy"):
        assert record["metrics"][name] == {"value": None, "reason": "energy was not requested (--no-energy)"}
    assert not [check for check in record["checks"] if check["name"].startswith("energy")]
    assert not list((place.runs / record["id"]).glob("power*"))
    assert "not requested" in place.prony("show", record["id"])
